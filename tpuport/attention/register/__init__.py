"""Registration of tpuport's attention with the libraries that call attention, one file a library."""
