"""Builds the component of a plugin: `python -m pilothouse.build`.

Reads `pyproject.toml` in the present folder, and writes `build/NAME.wasm`. The module of the plugin is that of the
project, and its variable `plugin` the plugin, unless there is

    [tool.pilothouse]
    plugin = "package.module:variable"
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from .plugin import define

WIT = Path(__file__).parent / "wit"

#: What a plugin of this SDK exports. The host calls what the manifest has.
WORLD = """
world python {
    include plugin;
    include observing;
    include admitting;
}
"""


class Refused(Exception):
    """Why the plugin cannot be built, for people."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pilothouse.build",
        description="Builds the plugin of the project in a folder: build/NAME.wasm.",
        epilog="example: python -m pilothouse.build && pilothouse dev --plugins build",
    )
    parser.add_argument("folder", nargs="?", default=".", type=Path, help="of the project; default: this folder")
    parser.add_argument("-o", "--output", type=Path, help="instead of build/NAME.wasm")
    options = parser.parse_args(arguments)
    try:
        build(options.folder.resolve(), options.output and options.output.resolve())
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def build(folder: Path, output: Path | None = None) -> Path:
    """Builds the component, and returns its path."""
    name, module, variable = project(folder)
    paths = [path for path in (folder / "src", folder) if path.is_dir()]
    check(paths, module, variable)
    output = output or folder / "build" / f"{name}.wasm"
    output.parent.mkdir(parents=True, exist_ok=True)
    print(f"building {output}: some seconds", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        app = Path(scratch) / "pilothouse_app.py"
        app.write_text(
            "from pilothouse.component import exported\n"
            f"from {module} import {variable} as plugin\n\n"
            "Controller, Observer, Admission = exported(plugin)\n"
        )
        wit = Path(scratch) / "wit"
        shutil.copytree(WIT, wit)
        with open(wit / "plugin.wit", "a") as world:
            world.write(WORLD)
        # Renamed into place, so that a host that watches the folder never loads half a file.
        made = output.parent / f".{output.name}.{os.getpid()}"
        command = [tool(), "--quiet", "--wit-path", str(wit), "--world", "python", "componentize", "pilothouse_app"]
        # The SDK comes from where it is installed, also if that is a folder beside the environment.
        sources = [scratch, *map(str, paths), str(Path(__file__).parent.parent)]
        command += [part for source in sources for part in ("--python-path", source)]
        done = subprocess.run([*command, "--output", str(made)], cwd=scratch, check=False)
        if done.returncode != 0:
            made.unlink(missing_ok=True)
            raise Refused(f"componentize-py ended with {done.returncode}: its message is above")
        made.replace(output)
    print(f"built {output}: {output.stat().st_size / 1e6:.1f} MB", flush=True)
    return output


def project(folder: Path) -> tuple[str, str, str]:
    """Returns the plugin's name, module and variable."""
    file = folder / "pyproject.toml"
    try:
        content = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise Refused(f"{file} is not there: run this in the folder of a project") from None
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"{file} is not valid: {error}") from None
    name = content.get("project", {}).get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise Refused(
            f"{file}: `project.name` must be lower-case letters, digits and `-`, and at most 63, not {name!r}"
        )
    plugin = content.get("tool", {}).get("pilothouse", {}).get("plugin", name.replace("-", "_"))
    module, _, variable = plugin.partition(":")
    return name, module, variable or "plugin"


def check(paths: list[Path], module: str, variable: str) -> None:
    """Loads the plugin here, where a mistake is told better than by the tool that follows."""
    sys.path[:0] = [str(path) for path in paths]
    try:
        plugin = getattr(importlib.import_module(module), variable)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise Refused(f"there is no module {module} in {' or '.join(map(str, paths))}") from None
    except AttributeError:
        raise Refused(f"the module {module} has no variable `{variable}`: it is the plugin") from None
    if not callable(plugin):
        define(plugin, {}).manifest()


def tool() -> str:
    """Returns the path of componentize-py, which is installed beside this Python."""
    beside = Path(sys.executable).parent / "componentize-py"
    return str(beside) if beside.is_file() else "componentize-py"


if __name__ == "__main__":
    sys.exit(main())
