"""Communication hooks that compress gradients."""
