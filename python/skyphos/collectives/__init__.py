"""The collectives, one module each; the methods of :class:`skyphos.Comm` call them."""
