"""Files that data come in, one format a module: each is checked for form and shape, and none is unpickled."""
