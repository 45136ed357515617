"""Builds what docs/ becomes: the site, and the pages of it that are generated from the code."""
