"""Importing headwise has no effects and brings nothing that was not asked for.

numpy is brought by jaxtyping where it is installed.
"""

import subprocess
import sys

PROGRAM = """
import sys, torch
before, threads = set(sys.modules), torch.get_num_threads()
import headwise
new = {name.partition(".")[0] for name in set(sys.modules) - before}
wanted = {"headwise", "jaxtyping", "wadler_lindig", "typing_extensions", "numpy"}
foreign = new - wanted - set(sys.stdlib_module_names)
assert not {n for n in foreign if not n.startswith("_")}, sorted(foreign)
assert torch.get_num_threads() == threads
"""


def test_import_is_quiet_and_brings_no_third_party() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr == ""
