"""Numbers as findings say them."""

from tpuport.topology.compile_report import Source


def size(nbytes: int | float) -> str:
    """As in "1.5 GiB", "3 MiB", "512 KiB", "100 bytes"."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}" if nbytes < 999 * scale else f"{nbytes / scale:,.0f} {unit}"
    return f"{nbytes:.0f} bytes"


def work(flops: int | float) -> str:
    """As in "2.5 TFLOP", "3 GFLOP", "100 MFLOP"."""
    unit, scale = ("TFLOP", 1e12) if flops >= 1e12 else ("GFLOP", 1e9) if flops >= 1e9 else ("MFLOP", 1e6)
    return f"{flops / scale:.3g} {unit}"


def several(count: int, one: str, many: str = "") -> str:
    """As in "1 weight", "3 weights"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def site(text: str, function: str = "") -> Source | None:
    """A place written as "file:line"."""
    file, _, line = text.rpartition(":")
    return Source(file, int(line), function) if file and line.isdigit() else None
