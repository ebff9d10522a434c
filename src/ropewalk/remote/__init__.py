"""Git in and out: branches of other repositories come in and go out with the same ids."""
