"""What other launchers and engines need so that their processes form a group."""
