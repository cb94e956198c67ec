"""Models as files that run elsewhere."""

from headwise.export.graph import for_onnx
from headwise.export.onnx_file import onnx

__all__ = ["for_onnx", "onnx"]
