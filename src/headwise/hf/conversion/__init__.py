"""Other attention inside trained models: what is replaced, by what, and how it is saved."""
