"""Reports as HTML pages of one file each."""
