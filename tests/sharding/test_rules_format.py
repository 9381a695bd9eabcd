"""Files of sharding rules, as `ShardingRules` reads and writes them."""

from pathlib import Path

import pytest
from jax.sharding import PartitionSpec

from tpuport import PortError, ShardingRules
from tpuport.sharding import Rule

RULES = ShardingRules((
    Rule(r"blocks\.\d+\.up\.weight", PartitionSpec("tp", None), reason="64 features"),
    Rule("embed", PartitionSpec(("dp", "tp"))),
    Rule("norm", PartitionSpec(None)),
))  # fmt: skip


@pytest.mark.parametrize("name", ["rules.json", "rules.toml"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    RULES.write(file)
    assert ShardingRules.read(file) == RULES
    assert ShardingRules.read(str(file)) == RULES
    assert ("# 64 features" in file.read_text()) == (file.suffix == ".toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"embed": "tp"}', r"(?s)'tp' is not a list of axis names.*rules\.json: 'embed'.*\[\"tp\", null\]"),
        ('{"a": ["tp"], "embed": [4]}', r"(?s)4 is not an axis of the mesh.*rules\.json: 'embed'"),
        ('{"*embed": ["tp"]}', r"(?s)not a regular expression.*rules\.json: '\*embed'"),
        ('{"embed": ["tp", "tp"]}', r"(?s)names an axis twice.*'embed'"),
        ('["embed"]', "not a map of patterns"),
        ('{"embed": ["tp"]', "(?s)not JSON"),
    ],
)
def test_what_is_no_rule_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "rules.json"
    file.write_text(text)
    with pytest.raises(PortError, match=message):
        ShardingRules.read(file)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(PortError, match="rules cannot be read: No such file"):
        ShardingRules.read(tmp_path / "none.json")
    with pytest.raises(PortError, match="rules cannot be written"):
        RULES.write(tmp_path / "none" / "rules.json")


def test_axes_may_have_any_names(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"embed": [["fsdp", "model"], "", null]}')
    assert ShardingRules.read(file) == ShardingRules({"embed": PartitionSpec(("fsdp", "model"), None, None)})
