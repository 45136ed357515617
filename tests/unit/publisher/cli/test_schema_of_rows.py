"""The file of --schema, as editors and tools of other systems write it."""

import io

import pytest

from tidemark.publisher.cli.rows import encoding
from tidemark.publisher.cli.rows.encoding import RegistryOptions, find_encoder
from tidemark.publisher.errors import PublishSettingsError

SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]}'


async def encoder(path, monkeypatch):
    async def known(*_):
        return "1"

    monkeypatch.setattr(encoding, "_ask", known)
    return await find_encoder(RegistryOptions("R", "g", path), {}, io.BytesIO(), is_avro=False)


@pytest.mark.parametrize("kind", ["utf-8", "utf-8-sig"])
async def test_a_schema_in_utf_8_is_read_with_and_without_a_mark(kind, tmp_path, monkeypatch):
    (tmp_path / "a.avsc").write_text(SCHEMA, encoding=kind)

    assert (await encoder(tmp_path / "a.avsc", monkeypatch)).schema["name"] == "R"


async def test_a_schema_in_utf_16_is_refused_by_its_option(tmp_path, monkeypatch):
    (tmp_path / "a.avsc").write_text(SCHEMA, encoding="utf-16")
    with pytest.raises(
        PublishSettingsError, match=r"--schema .*a\.avsc is not UTF-8 \(invalid start byte at byte 0\)"
    ):
        await encoder(tmp_path / "a.avsc", monkeypatch)
