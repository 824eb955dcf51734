"""Descriptions of strategies, policies and similar objects, which have a text form.

Examples: ``csc(density=0.1)``, ``mine.py:Mine(1)``. The text form is called the words of a description.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

from .errors import ArgumentError, ArgumentTypeError, GradientFlowError

# One item: all up to a semicolon outside parentheses and quotes.
_ITEM = re.compile(r"""(?:[^;"'(]|"[^"]*"|'[^']*'|\((?:[^)"']|"[^"]*"|'[^']*')*\)|\()+""")


class _Signature:
    """The signature of a description, made on first use: a decorator may add the constructor to the class later."""

    def __get__(self, instance: object, owner: type[Description]) -> inspect.Signature:
        if "_known_signature" not in vars(owner):
            owner._known_signature = owner._whole_signature()
        return owner._known_signature


class Description:
    """Base class of descriptions: a name and parameters of something that runs elsewhere.

    A subclass keeps each argument of its constructor in an attribute of the same name. These attributes give
    `settings`, equality and the words.

    Attributes
    ----------
    name : str
        Name in words; by default that of the class.
    not_taken : mapping of str to str
        Arguments that this description refuses although other descriptions take them, each with the reason.
    """

    name: ClassVar[str] = ""
    __signature__: ClassVar[object] = _Signature()
    _known_signature: ClassVar[inspect.Signature]
    not_taken: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **arguments: object) -> None:
        """Name a class that has no name of its own."""
        super().__init_subclass__(**arguments)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @classmethod
    def _whole_signature(cls) -> inspect.Signature:
        """Return the signature of the constructor, with the arguments that it passes on as ``**options``."""
        found: dict[str, inspect.Parameter] = {}
        makers = [base for base in cls.__mro__[:-1] if "__init__" in vars(base)]
        for maker in makers:
            own = cls._own_parameters(maker)
            for each in own:
                if each.kind is not inspect.Parameter.VAR_KEYWORD:
                    is_own = maker is makers[0]
                    found.setdefault(each.name, each if is_own else each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in own):
                break
        else:
            for name, default in cls._keywords().items():
                found.setdefault(name, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
        return inspect.Signature(sorted(found.values(), key=lambda each: each.kind))

    @classmethod
    def _own_parameters(cls, maker: type) -> list[inspect.Parameter]:
        """Return the parameters of the constructor of this class or of a base class."""
        return [*inspect.signature(vars(maker)["__init__"]).parameters.values()][1:]

    @classmethod
    def _keywords(cls) -> dict[str, object]:
        """Return the keywords, with their defaults, that the last constructor of the base classes takes."""
        return {}

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor, by name."""
        parameters = inspect.signature(type(self)).parameters.values()
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        names = [each.name for each in parameters if each.kind not in kinds]
        missing = [name for name in names if not hasattr(self, name)]
        if missing:
            message = f"{self.name} has no attribute {missing[0]}: each argument is kept in one of the same name"
            raise ArgumentError(message)
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        """Return the words: the name, and the arguments that differ from their defaults."""
        parameters = inspect.signature(type(self)).parameters
        given = {name: value for name, value in self.settings.items() if parameters[name].default != value}
        arguments = ", ".join(f"{name}={_word(value)}" for name, value in given.items())
        return f"{self.name}({arguments})" if arguments else self.name

    def __eq__(self, other: object) -> bool:
        """Return True if another description has the same class and the same settings."""
        return type(other) is type(self) and isinstance(other, Description) and self.settings == other.settings

    def __hash__(self) -> int:
        """Return the same number for equal descriptions."""
        return hash(repr(self))


def words_of(description: Description) -> str:
    """Return words that can be parsed anywhere; a user's own class gets the absolute path of its file."""
    kind, words = type(description), repr(description)
    module = sys.modules.get(kind.__module__)
    path = getattr(module, "__file__", None) or ""
    is_own = kind.__module__.partition(".")[0] != __name__.partition(".")[0]
    if not (is_own and path.endswith(".py") and getattr(module, kind.__name__, None) is kind):
        return words
    return f"{Path(path).resolve()}:{kind.__name__}{words.removeprefix(description.name)}"


def plain_of(description: Description) -> tuple[str, str, dict[str, object]]:
    """Return the module and the name of a description's class, and its settings."""
    kind = type(description)
    return kind.__module__, kind.__qualname__, description.settings


def from_plain(base: type[Any], plain: tuple[str, str, dict[str, object]]) -> Any:
    """Return the description that `plain_of` took apart in another process. Imports nothing.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If this process has no such class derived from `base`.
    """
    module, name, settings = plain
    kinds = [base]
    for kind in kinds:  # the list grows during the loop
        if (kind.__module__, kind.__qualname__) == (module, name):
            return kind(**settings)
        kinds += kind.__subclasses__()
    raise ArgumentError(f"there is no {base.__name__} {name} of {module} here: import it before gradientflow.init")


def _word(value: object) -> str:
    """Return a value in words; for a function its name, which is the same on all ranks."""
    return str(getattr(value, "__qualname__", type(value).__name__)) if callable(value) else repr(value)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error text: the known name that is most like an unknown one, if any."""
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, len(names) or 1)
    close.sort(key=lambda each: sorted(each) != sorted(name.lower()))  # letters in another order are the likeliest slip
    return f"; did you mean {close[0]}?" if close else ""


Kind = TypeVar("Kind", bound=Description)


class Parser(Generic[Kind]):
    """Parser of the words of one kind of description.

    Parameters
    ----------
    base : type
        Base class of this kind.
    noun : str
        Name of this kind in messages.
    known : iterable of types
        The library's own classes, whose words need no file.
    runs_files : bool, default True
        True if classes in the user's files are allowed, too.
    """

    FORMS = "name, name(argument=value, ...), or path/to/file.py:Class(argument=value, ...) for one of your own"

    def __init__(self, base: type[Any], noun: str, known: Iterable[type[Kind]], *, runs_files: bool = True) -> None:
        self.base, self.noun, self._runs_files = base, noun, runs_files
        self.by_name: Mapping[str, type[Kind]] = {each.name: each for each in known}

    def parse_all(self, text: str, groups: Mapping[str, Callable[[], Sequence[Kind]]] | None = None) -> list[Kind]:
        """Return the descriptions in a text, separated by semicolons; a name in `groups` stands for several.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the text is empty, names an unknown description, or gives arguments that it does not take.
        """
        items = [item.strip() for item in _ITEM.findall(self._text(text))]
        found: list[Kind] = []
        for item in filter(None, items):
            found += groups[item]() if groups and item in groups else [self.parse(item)]
        if not found:
            raise ArgumentError(f"{text!r} names no {self.noun}: it is {self.FORMS}")
        return found

    def parse(self, text: str, folder: Path | None = None) -> Kind:
        """Return the single description in a text; raises as `parse_all` does.

        Relative paths of files begin at `folder`, by default the current one.
        """
        path, call = self._parts(text)
        if path is not None and not self._runs_files:
            raise ArgumentError(f"there is no {self.noun} {text!r}: there are {', '.join(self.by_name)}")
        tree = _tree(call)
        named = tree.func if isinstance(tree, ast.Call) else tree
        if not isinstance(named, ast.Name):
            reason = ", as a ) is missing at its end" if tree is None and _tree(f"{call})") else ""
            raise ArgumentError(f"{text!r} is no {self.noun} in words{reason}: they are {self.FORMS}")
        kind = self._known(named.id) if path is None else self._own((folder or Path()) / path, named.id)
        positional, by_name = _arguments(tree, kind.name) if isinstance(tree, ast.Call) else ([], {})
        for argument in by_name:
            if argument in kind.not_taken:
                raise ArgumentError(f"{text!r}: {kind.name} takes no {argument}: {kind.not_taken[argument]}")
        try:
            bound = inspect.signature(kind).bind(*positional, **by_name)
        except TypeError as error:
            known = [*inspect.signature(kind).parameters]
            hint = next(filter(None, (did_you_mean(each, known) for each in by_name if each not in known)), "")
            names = ", ".join(known) or "none"
            raise ArgumentError(f"{text!r}: {error}; the arguments of {kind.name} are {names}{hint}") from None
        try:
            made = kind(*bound.args, **bound.kwargs)
            repr(made)  # raises if a setting is missing
        except GradientFlowError as error:
            raise type(error)(f"{text!r}: {error}") from error
        except Exception as error:
            raise ArgumentError(f"{text!r} cannot be made: {type(error).__name__}: {error}") from error
        return made

    def given(self, value: object) -> Kind:
        """Return a description given as an object or in words.

        Raises
        ------
        gradientflow.errors.ArgumentError
            If the words cannot be parsed.
        gradientflow.errors.ArgumentTypeError
            If `value` is neither words nor a description of this kind.
        """
        if isinstance(value, str):
            return self.parse(value)
        if not isinstance(value, self.base):
            what = value.__name__ if isinstance(value, type) else type(value).__name__
            place = self.base.__module__.rpartition(".")[0]
            message = f"the {self.noun} is a {what}: what is needed is a {place}.{self.base.__name__}, or its words"
            raise ArgumentTypeError(message)
        found: Kind = value
        return found

    def file(self, text: str) -> Path | None:
        """Return the file that `parse` would run for a text; None for the library's own descriptions."""
        return self._parts(text)[0]

    def _parts(self, text: str) -> tuple[Path | None, str]:
        """Split a text into the file (None if it names none) and the call."""
        place, separator, call = self._text(text).strip().rpartition(".py:")
        return Path(f"{place}.py") if separator else None, call

    def _text(self, words: object) -> str:
        if not isinstance(words, str):
            raise ArgumentTypeError(f"a {self.noun} in words is a text, not a {type(words).__name__}")
        return words

    def _known(self, name: str) -> type[Kind]:
        if name not in self.by_name:
            forms = f"{', '.join(self.by_name)}, and path/to/file.py:Class{did_you_mean(name, self.by_name)}"
            raise ArgumentError(f"there is no {self.noun} {name!r}: there are {forms}")
        return self.by_name[name]

    def _own(self, path: Path, name: str) -> type[Kind]:
        """Return a class from a user's file."""
        module = _module(path, self.noun)
        kind = getattr(module, name, None)
        if not (isinstance(kind, type) and issubclass(kind, self.base)):
            there = [
                key
                for key, value in vars(module).items()
                if isinstance(value, type) and issubclass(value, self.base) and value.__module__ == module.__name__
            ]
            raise ArgumentError(f"{path} has no {self.noun} {name!r}: it has {', '.join(there) or 'none'}")
        return kind


def _module(path: Path, noun: str) -> ModuleType:
    """Run a user's file as a module, once per process."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"the file of a {noun} cannot be read: {error}") from error
    name = f"gradientflow_own_{path.stem}_{hashlib.sha256(bytes(path.resolve()) + source).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"{path} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ArgumentError(f"{path} fails when it is run: {type(error).__name__}: {error}") from error
    return module


def _tree(call: str) -> ast.expr | None:
    """Return the syntax tree of an expression; None for other text."""
    try:
        return ast.parse(call.strip(), mode="eval").body
    except (SyntaxError, MemoryError, RecursionError):  # the last two: nested too deep
        return None


def _arguments(call: ast.Call, name: str) -> tuple[list[object], dict[str, object]]:
    """Return the arguments of a call; all must be literals."""

    def literal(node: ast.expr, what: str) -> object:
        try:
            return ast.literal_eval(node)
        except RecursionError:
            found = "nested too deep"
        except ValueError:
            found = ast.unparse(node)
        raise ArgumentError(
            f"{what} of {name} is {found}: what is needed is a number, a text in quotes, or another literal"
        )

    if any(keyword.arg is None for keyword in call.keywords):
        raise ArgumentError(f"the arguments of {name} are given one by one, not by **")
    positional = [literal(node, f"argument {number}") for number, node in enumerate(call.args, 1)]
    return positional, {str(each.arg): literal(each.value, str(each.arg)) for each in call.keywords}


__all__ = ["Description", "Parser", "did_you_mean", "words_of"]
