"""What models are trained on: cross entropy of tokens, and the losses of classifiers."""

from torch import Tensor
from torch.nn import functional

from headwise.errors import ShapeError
from headwise.models.configuration import HeadwiseConfig


def token_loss(
    logits: Tensor, labels: Tensor, items: Tensor | int | None, *, of_next: bool = False
) -> Tensor:
    """Return the cross entropy of tokens, in float32; labels of -100 are left out.

    Args:
        logits: (batch, length, vocab_size).
        labels: (batch, length).
        items: What the sum is divided by; ``None`` = the number of labels that count.
        of_next: Whether the label of a place is what the place before it must tell.

    Raises:
        ShapeError: Labels of another batch or length.
    """
    if labels.shape != logits.shape[:-1]:
        raise ShapeError(
            f"HeadwiseModel: labels must be {tuple(logits.shape[:-1])}, one for each token, "
            f"got {tuple(labels.shape)}\n  hint: -100 leaves a place out; models move labels "
            "themselves"
        )
    if of_next:
        logits, labels = logits[:, :-1], labels[:, 1:]
    scores = logits.flatten(0, 1).float()
    reduction = "mean" if items is None else "sum"
    loss = functional.cross_entropy(scores, labels.flatten(), reduction=reduction)
    return loss if items is None else loss / items


def classification_loss(logits: Tensor, labels: Tensor, config: HeadwiseConfig) -> Tensor:
    """Return the loss of (batch, num_labels) logits, by ``problem_type`` or what labels are."""
    problem: str | None = config.problem_type
    if problem is None:
        several = "multi_label_classification"
        one = several if labels.is_floating_point() else "single_label_classification"
        problem = "regression" if logits.shape[-1] == 1 else one
    if problem == "regression":
        return functional.mse_loss(logits.float(), labels.view(logits.shape).float())
    if problem == "single_label_classification":
        return functional.cross_entropy(logits.float(), labels.flatten())
    return functional.binary_cross_entropy_with_logits(logits.float(), labels.float())
