"""Who may import what, what pure modules never touch, and how large a room may be: docs/architecture.md, kept by the code."""

import ast
import re
import sys
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from runpy import run_path

ROOT = Path(__file__).parents[2]
FOUNDATION, PUBLISHER, ANALYSIS = "tidemark.foundation", "tidemark.publisher", "tidemark.analysis"
TESTING = "tidemark.testing"
CONSUMING = "tidemark.consuming"
PARTS = {
    FOUNDATION: set(),
    CONSUMING: set(),
    PUBLISHER: {FOUNDATION},
    "scaling": {FOUNDATION},
    "consumer": {FOUNDATION, PUBLISHER, CONSUMING},
    TESTING: {FOUNDATION, "consumer"},
    ANALYSIS: {FOUNDATION, "scaling"},
    "spark_jobs": {FOUNDATION, ANALYSIS, "scaling", "consumer"},
    "tidemark.commands": {FOUNDATION, "scaling"},
    "tidemark": {
        FOUNDATION,
        PUBLISHER,
        ANALYSIS,
        "scaling",
        "consumer",
        "spark_jobs",
        "tidemark.commands",
    },  # the command line
    "devstack": {
        FOUNDATION,
        PUBLISHER,
        ANALYSIS,
        "scaling",
        "consumer",
        "spark_jobs",
        "tidemark",
        "tidemark.commands",
    },
}
"""Each part, and the parts below it."""
OPEN = {
    # Orders about a consumer stand in the scaling log.
    "consumer.web": {
        "scaling.log_entry",
        "scaling.ports",
        "scaling.storage.decision_log",
        "scaling.storage.orders",
    },
    # One lint for both files.
    "tidemark.commands.autoscaler": {"consumer.cli.lint"},
    # One doctor for all that an app does.
    "scaling.doctor.examination": {"consumer.doctor", "consumer.doctor.checks"},
}
"""What a folder may import of a part that is not below it: modules, by name."""
ON_TOP = {"__main__", "cli", "frame", "per_target", "tidemark_spark", "environment", "local"}
"""Modules beside a part's folders that stand above them: its commands, and what all jobs are framed by. All others beside them stand below."""
PURE_FOLDERS = (
    *(
        "consumer.core",
        "consumer.mapping",
        "tidemark.publisher.event_hubs.core",
        "tidemark.publisher.service_bus.core",
    ),
    *(
        "tidemark.analysis.simulation",
        "scaling.analysis",
        "scaling.budget",
        "scaling.config",
        "scaling.decision",
        "scaling.drains",
        "scaling.measuring",
        "scaling.rules",
        "scaling.schedules",
        "tidemark.foundation.pacing",
    ),
)
PURE_MODULES = {
    *(
        "tidemark.foundation.settings_reader",
        "scaling.model",
        CONSUMING,
        "scaling.window",
        "scaling.web.views",
    ),
    *("scaling.service.messages", "scaling.storage.rows", "scaling.collectors.event_hub.lag"),
    *(
        "scaling.collectors.event_hub.checkpoint_layouts",
        "consumer.config",
        "consumer.errors",
        "consumer.model",
        "consumer.rejections",
    ),
    *("consumer.leasing.balance", "consumer.leasing.start_position", "consumer.receiving.amqp_event"),
    *("consumer.sinks.cosmos.answers", "consumer.stores.blob.layout", "consumer.telemetry.interval"),
    *("tidemark.publisher.errors", "tidemark.analysis.errors"),
}
"""Besides those of the pure folders, and all whose docstring says so."""
PURE_LIBRARIES = {
    "msgspec",
    "mmh3",
    "numpy",
    "pyarrow",
    "fastavro",
    "google",  # its protobuf
    "zstandard",
}  # arithmetic, hashes, and bytes to values
CONTRACTS = {
    "scaling.ports",
    "consumer.ports",
    "tidemark.foundation.version",
    "tidemark.foundation.errors",
}  # nothing in them runs
PUBLIC = {"tidemark.publisher", TESTING}  # its own code names what is public in the folders below it
ADAPTERS = (
    *("scaling.collectors", "scaling.scalers", "scaling.storage", "consumer.sinks", "consumer.stores"),
    *(
        "consumer.receiving",
        "tidemark.publisher.event_hubs.sdk",
        "tidemark.publisher.event_hubs.states",
        "tidemark.publisher.service_bus.sdk",
    ),
)
DECIDING = (
    *("scaling.analysis", "scaling.decision.decide", "scaling.rules", "scaling.service"),
    *("consumer.core.pipeline", "consumer.leasing.ownership", "consumer.running"),
    *("tidemark.publisher.event_hubs.shell", "tidemark.publisher.service_bus.sender"),
)
"""What adapters carry out and never ask."""
IN_MEMORY = {"io.BytesIO", "io.StringIO"}
IMPURE = {"time", "random", "secrets", "logging", "socket", "subprocess", "asyncio", "threading", "os", "io"}
LOCKED = {"tidemark.foundation.secrets.known": {"threading"}}
"""Pure but for a lock: what a process hides is its state, which the threads of its checks and workers share."""
FORBIDDEN_CALLS = {"open", "print", "input", "eval", "exec", "compile", "__import__", "breakpoint"}
FORBIDDEN_METHODS = {"now", "utcnow", "today", "read_text", "write_text", "read_bytes", "write_bytes"}


@cache
def part_of(name):
    """The part that a module belongs to; what stands in `tidemark` and in no part below it is the command line."""
    return max((part for part in PARTS if f"{name}.".startswith(f"{part}.")), key=len, default=None)


def modules():
    """Dotted name -> path of every module there is."""
    found = {}
    for top in {part.partition(".")[0] for part in PARTS}:
        for path in sorted((ROOT / top).rglob("*.py")):
            if "node_modules" not in path.parts:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = path
    return found


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path):
    """Every module a file imports, wherever in the file; `from a import b` gives a and a.b."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


MODULES = modules()
FOLDERS = {name for name, path in MODULES.items() if path.name == "__init__.py"}


@cache
def own(path):
    """Our modules that a file imports. A folder's own code counts where it is meant: `from folder import name`."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {node.module}
    return found & MODULES.keys()


@cache
def foreign(path):
    """Top-level packages a file imports that are neither ours nor the standard library's."""
    tops = {name.partition(".")[0] for name in imports(path)}
    return tops - set(sys.stdlib_module_names) - {*(part.partition(".")[0] for part in PARTS), "__future__"}


def says_pure(path):
    words = ast.get_docstring(tree(path)) or ""
    return re.search(r"\(pure\)|\bPure[.;]", words) is not None


@cache
def pure():
    """Names of the pure modules. Asked for by tests only: it parses all there is, and every worker collects this file."""
    return PURE_MODULES | {
        name
        for name, path in MODULES.items()
        if name.startswith(PURE_FOLDERS) or (says_pure(path) and not name.startswith("devstack"))
    }


@cache
def room(name):
    """The folder of a module; commands stand in a room of their own above a part's folders, and so do public names."""
    if name in FOLDERS:
        return f"{name} (public names)" if name in PUBLIC else name
    folder, _, module = name.rpartition(".")
    return f"{folder} (commands)" if folder in PARTS and module in ON_TOP else folder


def test_a_part_imports_what_is_below_it():
    wrong = {}
    for name, path in MODULES.items():
        part = part_of(name)
        opened = {each for folder, names in OPEN.items() if name.startswith(folder) for each in names}
        above = {
            each for each in own(path) if part_of(each) not in {part, *PARTS[part]} and each != "tidemark"
        }
        if above - opened:
            wrong[name] = above - opened

    assert wrong == {}


def circle_of(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def test_no_modules_import_each_other_in_a_circle():
    assert circle_of({name: own(path) - {name} for name, path in MODULES.items()}) is None


def test_no_folders_import_each_other_in_a_circle():
    graph = defaultdict(set)
    for name, path in MODULES.items():
        graph[room(name)] |= {room(each) for each in own(path)} - {room(name)}

    assert circle_of(graph) is None


def test_adapters_import_nothing_that_decides():
    asked = {name: {each for each in own(MODULES[name]) if each.startswith(DECIDING)} for name in MODULES}

    assert {name: each for name, each in asked.items() if name.startswith(ADAPTERS) and each} == {}


def test_every_rule_is_about_something_that_is_there():
    for name in (*OPEN, *PURE_FOLDERS, *ADAPTERS, *DECIDING):
        assert [each for each in MODULES if each.startswith(name)], name


def test_the_product_never_imports_the_test_bed():
    assert not [name for name in imports(ROOT / "function_app.py") if name.startswith("devstack")]


def test_pure_modules_import_the_standard_library_msgspec_and_each_other():
    wrong = {
        name: (foreign(MODULES[name]) - PURE_LIBRARIES) | (own(MODULES[name]) - FOLDERS - pure() - CONTRACTS)
        for name in pure()
    }

    assert {name: each for name, each in wrong.items() if each} == {}


def impurities(path):
    """What a module has of clocks, chance, logs and files."""
    imported = imports(path)
    if IN_MEMORY & imported:
        imported = imported - IN_MEMORY - {"io"}
    found = {each.partition(".")[0] for each in imported} & IMPURE
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
                found.add(node.func.id)
            if isinstance(node.func, ast.Attribute) and node.func.attr in FORBIDDEN_METHODS:
                found.add(node.func.attr)
    return found


def test_pure_modules_have_no_clock_no_chance_no_log_and_no_files():
    wrong = {name: impurities(MODULES[name]) - LOCKED.get(name, set()) for name in pure()}

    assert {name: found for name, found in wrong.items() if found} == {}


def test_pure_modules_are_not_asynchronous():
    kinds = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)

    assert not [
        name for name in pure() if any(isinstance(node, kinds) for node in ast.walk(tree(MODULES[name])))
    ]


def test_only_the_web_folders_import_the_functions_library():
    importers = {name for name, path in MODULES.items() if "azure.functions" in imports(path)}

    assert {room(name) for name in importers} <= {"scaling.web", "consumer.web", "devstack.function_host"}


def test_the_analysis_knows_no_spark():
    own = [name for name in MODULES if part_of(name) == ANALYSIS]

    assert own
    assert [name for name in own if "pyspark" in foreign(MODULES[name])] == []


def test_the_autoscaler_knows_no_sdk():
    assert foreign(MODULES["scaling.service.autoscaler"]) <= {"msgspec"}


# -- rooms that one can survey --------------------------------------------------------------------------


def test_no_folder_has_more_than_twelve_modules():
    sizes = Counter(name.rpartition(".")[0] for name in MODULES if name not in FOLDERS)

    assert {folder: count for folder, count in sizes.items() if count > 12} == {}


def lines_of_work(function):
    """Lines of a function's body, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return function.end_lineno - body[0].lineno + 1 if body else 0


def test_a_module_has_400_lines_at_most():
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in MODULES.items()}

    assert {name: count for name, count in lines.items() if count > 400} == {}


def test_a_function_has_40_lines_at_most():
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    lines = {
        f"{name}.{node.name}": lines_of_work(node)
        for name, path in MODULES.items()
        for node in ast.walk(tree(path))
        if isinstance(node, kinds)
    }

    assert {name: count for name, count in lines.items() if count > 40} == {}


def test_a_folder_says_its_duty():
    assert [name for name in FOLDERS if not ast.get_docstring(tree(MODULES[name]))] == []


def drawn():
    """Folder -> duty, as docs/architecture.md draws them."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = text.partition("## The packages")[2].partition("```\n")[2].partition("```")[0]
    found, above = {}, []
    for line in block.splitlines():
        indent, name, duty = re.fullmatch(r"( *)([a-z_]+)/ +(.+)", line).groups()
        above = [*above[: len(indent) // 2], name]
        found[".".join(above)] = duty
    return found


def test_the_architecture_draws_the_rooms_as_they_are():
    duties = {name: ast.get_docstring(tree(MODULES[name])).splitlines()[0].rstrip(".") for name in FOLDERS}

    assert {name: duty.rstrip(".") for name, duty in drawn().items()} == duties


def test_the_picture_is_drawn_from_the_imports_as_they_are():
    script = run_path(str(ROOT / "docs/images/draw_architecture.py"))

    assert script["DRAWN"].read_text(encoding="utf-8") == script["drawing"](), (
        "python docs/images/draw_architecture.py"
    )
