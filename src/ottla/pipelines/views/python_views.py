"""Python views: `module:function` beside the pipeline's file, frames in by name, a frame out.

What lives beside the file is not installed anywhere, least of all on executors. So its modules are
pickled by value into the functions that Spark ships, and nothing of them is left in this process.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from ottla.pipelines.language.model import PythonFunction
from ottla.pipelines.language.problems import Problem
from ottla.pipelines.views.spark_errors import one_line, sentence
from ottla.pipelines.views.sql_views import BadView
from ottla.spark.spelling import nearest

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

SPARK: Final = "spark"
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

Function = Callable[..., Any]


class BesideTheFile:
    """The modules in the directory of the pipeline's file, while its views are made."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()
        self._before: Mapping[str, ModuleType] = {}
        self._by_value: list[ModuleType] = []

    @contextmanager
    def importable(self) -> Iterator[None]:
        """They come first on sys.path, and are forgotten at the end: another file may have others
        of the same name. Functions that Spark got meanwhile are pickled already."""
        path_before = list(sys.path)
        self._before = dict(sys.modules)
        for name in [one for one in sys.modules if self._hides(one)]:
            del sys.modules[name]
        sys.path.insert(0, str(self._directory))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path[:] = path_before
            self._forget()

    def find(self, wanted: PythonFunction, *, subject: str) -> Function:
        """The function, imported; raises BadView."""
        named = f"{wanted.module}:{wanted.function}"
        try:
            module = importlib.import_module(wanted.module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{wanted.module}.".startswith(f"{error.name}."):
                raise self._failed(wanted, error, subject, "cannot be imported") from None
            known = sorted(one.stem for one in self._directory.glob("*.py"))
            text = f"there is no module {wanted.module} in {self._directory} or installed"
            hint = nearest(wanted.module, known)
            raise BadView(Problem(f"{subject}: {text}{hint}", wanted.place)) from None
        except (Exception, SystemExit) as error:
            raise self._failed(wanted, error, subject, "cannot be imported") from None
        self._take_by_value()
        function = getattr(module, wanted.function, None)
        if function is None:
            known = [name for name, one in vars(module).items() if inspect.isfunction(one)]
            text = f"{wanted.module} has no function {wanted.function}"
            hint = nearest(wanted.function, known)
            raise BadView(Problem(f"{subject}: {text}{hint}", wanted.place))
        if not callable(function):
            raise BadView(Problem(f"{subject}: {named} is no function", wanted.place))
        return function  # type: ignore[no-any-return]

    def call(
        self, function: Function, inputs: Mapping[str, Any], wanted: PythonFunction, *, subject: str
    ) -> DataFrame:
        """What the function makes of its inputs; raises BadView."""
        from pyspark.sql import DataFrame

        try:
            made = function(**inputs)
        except (Exception, SystemExit) as error:
            raise self._failed(wanted, error, subject, "failed") from None
        if isinstance(made, DataFrame):
            return made
        named = f"{wanted.module}:{wanted.function}"
        kind = "None" if made is None else f"a {type(made).__name__}"
        text = f"{named} returned {kind}; it must return a DataFrame"
        raise BadView(Problem(f"{subject}: {text}", wanted.place))

    def _hides(self, name: str) -> bool:
        """Is this module in sys.modules another than the one that the directory has to offer?"""
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("ottla", "pyspark"):
            return False
        loaded = _file_of(sys.modules.get(top))
        if loaded is not None and self._is_beside(loaded):
            return False
        return _offers(self._directory, top)

    def _is_beside(self, file: Path) -> bool:
        return file.is_relative_to(self._directory) and not INSTALLED.intersection(file.parts)

    def _imported(self) -> list[ModuleType]:
        """What has been imported from the directory since `importable` began."""
        return [
            module
            for name, module in list(sys.modules.items())
            if self._before.get(name) is not module
            and getattr(module, "__name__", "") == name
            and (file := _file_of(module)) is not None
            and self._is_beside(file)
        ]

    def _take_by_value(self) -> None:
        from pyspark.cloudpickle import register_pickle_by_value

        for module in self._imported():
            if module not in self._by_value:
                register_pickle_by_value(module)  # type: ignore[no-untyped-call]
                self._by_value.append(module)

    def _forget(self) -> None:
        from pyspark.cloudpickle import unregister_pickle_by_value

        for module in self._by_value:
            unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
        self._by_value.clear()
        for module in self._imported():
            del sys.modules[module.__name__]
        sys.modules.update(self._before)

    def _failed(
        self, wanted: PythonFunction, error: BaseException, subject: str, what: str
    ) -> BadView:
        named = f"{wanted.module}:{wanted.function}"
        where = self._line_of(error)
        kind = type(error)
        said = sentence(error) if _is_spark(error) else one_line(error)
        if isinstance(error, SyntaxError):
            said = error.msg
        # A sentence of Spark's needs no name before it, KeyError's 'shop' does.
        if not kind.__module__.startswith(("pyspark.", "ottla.", "py4j.")):
            said = f"{kind.__name__}: {said}" if str(error) else kind.__name__
        return BadView(Problem(f"{subject}: {named} {what}{where}: {said}", wanted.place))

    def _line_of(self, error: BaseException) -> str:
        """The last line of the user's own files that the error came through."""
        if isinstance(error, SyntaxError) and error.filename and error.lineno:
            return f" at {Path(error.filename).name} line {error.lineno}"
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if self._is_beside(Path(frame.filename).absolute()):
                return f" at {Path(frame.filename).name} line {frame.lineno}"
        return ""


def inputs_of(function: Function, known: Mapping[str, object]) -> dict[str, bool]:
    """The function's parameters: by name, and whether each must be a source, a view or `spark`.

    A parameter with a default that names nothing known keeps its default.
    """
    wanted: dict[str, bool] = {}
    for name, one in inspect.signature(function).parameters.items():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        is_needed = one.default is one.empty
        if is_needed or name in known or name == SPARK:
            wanted[name] = is_needed
    return wanted


def _is_spark(error: BaseException) -> TypeGuard[PySparkException]:
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException)


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).absolute() if isinstance(file, str) else None


def _offers(directory: Path, top: str) -> bool:
    found = importlib.machinery.PathFinder.find_spec(top, [str(directory)])
    # Without a loader it is a mere folder, which gives way to any real package.
    return found is not None and found.loader is not None
