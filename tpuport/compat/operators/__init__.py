"""Operators that torchax lacks or gets wrong, one topic a file;
`tpuport.compat.replacements` installs them.
"""
