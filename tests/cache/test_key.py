import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from neuron_dynamo.cache import CacheKey, program_key, toolchain
from neuron_dynamo.compiler_flags import canonical_flags
from neuron_dynamo.options import Options
from neuron_dynamo.target import get_target


@dataclass
class StubCompiler:
    name: str = "stub"
    pairs: tuple[tuple[str, str], ...] = (("version", "1"), ("flags", "-a"))

    def identity(self):
        return self.pairs


def stub_key(digest="d", target="host", lnc=None, given=None, compiler=None):
    return program_key(digest, get_target(target, lnc), Options.resolve(given or {}, environ={}), compiler or StubCompiler())


def test_parts_are_named_and_complete():
    assert [name for name, _ in stub_key().parts] == [
        "kind",
        "program",
        "target",
        "lnc",
        "compiler",
        "compiler.flags",
        "compiler.version",
        "compiler_args",
        "precision",
        "lowering",
        "torch",
        "torch-mlir",
        "jaxlib",
        "format",
    ]


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        (stub_key("other"), "program"),
        (stub_key(target="trn2", lnc=1), "target"),
        (stub_key(compiler=StubCompiler("other")), "compiler"),
        (stub_key(compiler=StubCompiler(pairs=(("version", "2"), ("flags", "-a")))), "compiler.version"),
        (stub_key(compiler=StubCompiler(pairs=(("version", "1"), ("flags", "-b")))), "compiler.flags"),
        (stub_key(given={"compiler_args": "-O1"}), "compiler_args"),
        (stub_key(given={"precision": "narrow"}), "precision"),
        *((CacheKey(tuple((n, v + "x" if n == name else v) for n, v in stub_key().parts)), name) for name, _ in stub_key().parts),
    ],
)
def test_every_part_changes_the_digest(changed, part):
    assert changed.digest != stub_key().digest
    assert [name for name, _, _ in stub_key().differing(changed)] == [part]


def test_lnc_changes_the_digest():
    assert stub_key(target="trn2", lnc=1).differing(stub_key(target="trn2", lnc=2)) == (("lnc", "1", "2"),)


def test_harmless_differences_do_not_change_the_digest(tmp_path):
    base = stub_key()
    assert stub_key(compiler=StubCompiler(pairs=(("flags", "-a"), ("version", "1")))).digest == base.digest
    assert CacheKey(base.parts[::-1]).digest == base.digest
    assert stub_key(given={"compiler_args": "--logfile=x --verbose debug"}).digest == base.digest
    for given in ({"cache_dir": tmp_path}, {"model_name": "m"}, {"dump_dir": tmp_path}, {"cache": "readonly"}):
        assert stub_key(given=given).digest == base.digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-O1 --model-type transformer", "--model-type=transformer --optlevel 1"),
        ("-O1 -O2", "-O2"),
        ("--optlevel=3 -O=2", "-O2"),
        ("-lnc 2", "--logical-nc-config=2"),
        ("--auto-cast none --target trn2", "--target=trn2 --auto-cast=none"),
        ("--disable-saturate-infinity --enable-saturate-infinity", "--enable-saturate-infinity"),
        ("--implicit-integer-downcast=scatter,dot", "--implicit-integer-downcast=dot,scatter,dot"),
        ("-O1 --logfile /tmp/a --output=b --verbose 35 --cache_dir s3://x --no_cache", "-O1"),
        ("--cache_dir /tmp/zz --log_level INFO --dump /tmp/x -O1 --retry_failed_compilation", "-O1"),
        ("--dump=/tmp/x --dump --no_cache", ""),
        ("--internal-x=1 -O1", "-O1 --internal-x=1"),
    ],
)
def test_arguments_of_one_meaning_are_one_key(one, other):
    assert canonical_flags(shlex.split(one)) == canonical_flags(shlex.split(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-O1", "-O2"),
        ("-O1 -O2", "-O2 -O1"),
        ("", "-O2"),
        ("--enable-saturate-infinity", "--disable-saturate-infinity"),
        ("--enable-saturate-infinity --disable-saturate-infinity", "--disable-saturate-infinity --enable-saturate-infinity"),
        ("--internal-x=1 --internal-x=2", "--internal-x=2"),  # it may accumulate
        ("--internal-x=1 --internal-y=2", "--internal-y=2 --internal-x=1"),  # its order may count
        ("--internal-x --output", "--internal-y --output"),
        ("--auto-cast=all --auto-cast-type bf16", "--auto-cast=all --auto-cast-type fp16"),
    ],
)
def test_arguments_of_other_meaning_are_other_keys(one, other):
    assert canonical_flags(shlex.split(one)) != canonical_flags(shlex.split(other))


def test_a_set_of_arguments_is_one_value_in_any_order():
    flags = {"--internal-b", "-O1", "--internal-a=1", "--internal-c"}
    assert stub_key(given={"compiler_args": flags}).digest == stub_key(given={"compiler_args": sorted(flags)}).digest
    assert stub_key(given={"compiler_args": frozenset(flags)}).digest == stub_key(given={"compiler_args": flags}).digest


def test_arguments_are_not_confused_with_their_concatenation():
    assert stub_key(given={"compiler_args": ["-a b"]}).digest != stub_key(given={"compiler_args": ["-a", "b"]}).digest
    assert CacheKey((("a", "b"),)).digest != CacheKey((("ab", ""),)).digest


def test_differing_names_parts_that_one_side_lacks():
    assert CacheKey((("a", "1"), ("b", "2"))).differing(CacheKey((("b", "3"), ("c", "4")))) == (
        ("a", "1", None),
        ("b", "2", "3"),
        ("c", None, "4"),
    )


def test_json_round_trip():
    key = CacheKey((("program", "ü\n"), ("lnc", "1")))
    assert CacheKey.from_json(json.loads(json.dumps(key.to_json()))) == key
    with pytest.raises(TypeError):
        CacheKey.from_json([["a", 1]])
    with pytest.raises(ValueError, match="duplicate"):
        CacheKey((("a", "1"), ("a", "2")))


def test_same_digest_in_a_process_with_another_hash_seed_and_folder(tmp_path):
    script = (
        "from tests.cache.test_key import stub_key\n"
        "import sys\n"
        "print(stub_key().digest, 'torch_mlir' in sys.modules, 'jaxlib' in sys.modules)\n"
    )
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": root, "RANK": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{stub_key().digest} False False\n"


def _package(folder: Path, version: str | None, body: str) -> None:
    (folder / "somelib").mkdir(parents=True)
    (folder / "somelib" / "__init__.py").write_text(body)
    if version:
        info = folder / f"some_lib-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: some-lib\nVersion: {version}\n")


def test_version_follows_what_is_imported(tmp_path, monkeypatch):
    installed, shadowing = tmp_path / "installed", tmp_path / "shadowing"
    _package(installed, "2.0", "x = 2")
    _package(shadowing, None, "x = 'one'")
    monkeypatch.syspath_prepend(installed)
    version = toolchain.package_version("some-lib", "somelib")
    assert version.startswith("2.0+files.")
    monkeypatch.syspath_prepend(shadowing)
    assert toolchain.package_version("some-lib", "somelib").startswith("unknown+files.")
    sys.path.remove(str(shadowing))
    (installed / "somelib" / "__init__.py").write_text("x = 'changed in place under stale metadata'")
    changed = toolchain.package_version("some-lib", "somelib")
    assert changed.startswith("2.0+files.") and changed != version
    assert toolchain.package_version("some-lib", "no_such_module") == "absent"


def test_version_of_torch_is_the_imported_ones_whatever_the_metadata_say(monkeypatch):
    monkeypatch.setattr(toolchain.torch, "__version__", "2.12.0")
    assert toolchain.torch_version().startswith("2.12.0+git.")
    monkeypatch.setattr(toolchain.torch.version, "git_version", "0123456789abcdef")
    assert toolchain.torch_version() == "2.12.0+git.0123456789ab"


def test_version_does_not_depend_on_the_place(tmp_path, monkeypatch):
    versions = set()
    for folder in (tmp_path / "a", tmp_path / "b"):
        _package(folder, "2.0", "x = 2")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            versions.add(toolchain.package_version("some-lib", "somelib"))
    assert len(versions) == 1


def test_source_digest_is_over_names_and_contents(tmp_path):
    def digest(**sources: str) -> str:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in sources.items():
            path = root / "lowering" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (root / "lowering" / "__pycache__").mkdir()
        (root / "lowering" / "__pycache__" / f"{len(sources)}{root.name}.pyc").write_text("noise")
        return toolchain._digest(root, [root / "lowering"])

    assert digest(a="1", b="2") == digest(a="1", b="2")
    assert len({digest(a="1", b="2"), digest(a="1", b="3"), digest(a="1", c="2"), digest(a="12", b=""), digest(a="1")}) == 5


def test_key_is_immutable():
    with pytest.raises(AttributeError):
        stub_key().parts = ()
    assert replace(stub_key(), parts=(("a", "b"),)).digest == CacheKey((("a", "b"),)).digest
