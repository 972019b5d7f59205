"""Scripts for maintainers: pictures of the architecture, the size of the packages, sentences to read."""
