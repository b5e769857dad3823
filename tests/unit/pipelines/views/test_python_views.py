"""Modules beside the pipeline's file: found first, shipped by value, forgotten afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark.cloudpickle import dumps

from ottla.pipelines.language.model import PythonFunction
from ottla.pipelines.language.problems import Place
from ottla.pipelines.views.python_views import BesideTheFile, inputs_of
from ottla.pipelines.views.sql_views import BadView

PLACE = Place(Path("p.yaml"), 1, 1)


def found(directory: Path, named: str) -> object:
    module, function = named.split(":")
    beside = BesideTheFile(directory)
    with beside.importable():
        return beside.find(PythonFunction(module, function, PLACE), subject="view v")()


def test_two_files_may_have_modules_of_the_same_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rules.py").write_text(f"def view(): return {name!r}\n")
    assert found(tmp_path / "one", "rules:view") == "one"
    assert found(tmp_path / "two", "rules:view") == "two"
    assert "rules" not in sys.modules


def test_what_is_beside_the_file_comes_before_what_is_imported_already(tmp_path: Path) -> None:
    import colorsys  # Of the standard library: stays what it is.

    import yaml as installed

    (tmp_path / "yaml.py").write_text("def view(): return 'mine'\n")
    (tmp_path / "colorsys.py").write_text("def view(): return 'mine'\n")
    assert found(tmp_path, "yaml:view") == "mine"
    assert sys.modules["yaml"] is installed
    with pytest.raises(BadView, match="colorsys has no function view"):
        found(tmp_path, "colorsys:view")
    assert sys.modules["colorsys"] is colorsys


def test_a_folder_does_not_hide_an_installed_package(tmp_path: Path) -> None:
    import yaml as installed

    (tmp_path / "yaml").mkdir()
    beside = BesideTheFile(tmp_path)
    with beside.importable():
        assert sys.modules["yaml"] is installed


def test_packages_and_what_they_import_are_pickled_by_value(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "helpers.py").write_text("SECRET = 'in the pickle'\n")
    (tmp_path / "shop" / "rules.py").write_text(
        "from shop import helpers\n\ndef view(): return helpers.SECRET\n"
    )
    beside = BesideTheFile(tmp_path)
    with beside.importable():
        wanted = PythonFunction("shop.rules", "view", PLACE)
        function = beside.find(wanted, subject="view v")
        assert b"in the pickle" in dumps(function)
    assert not [name for name in sys.modules if name.partition(".")[0] == "shop"]


def test_parameters_are_names_and_defaults_may_stay() -> None:
    def view(orders: object, spark: object, shops: object = None, rate: int = 3) -> None: ...

    assert inputs_of(view, {"orders": 1, "shops": 1}) == {
        "orders": True,
        "spark": True,
        "shops": False,
    }


def test_a_module_that_ends_the_process_is_told(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(BadView) as failed:
        found(tmp_path, "rules:view")
    assert str(failed.value) == (
        "p.yaml:1:1: view v: rules:view cannot be imported at rules.py line 2: SystemExit: 3"
    )
