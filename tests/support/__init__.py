"""What the tests share: the tolerance rule, an oracle, sizes, generators."""
