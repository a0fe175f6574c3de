"""Options as command-line flags: every ``Setting`` becomes an option of a click command, with its variable."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from services.common.config.foreign_flags import Alias, ForeignFlags, entry_of, translate
from services.common.config.options import TYPO_SIMILARITY, Setting, SettingError, build, is_service_link

T = TypeVar("T")
COMMON_OPTIONS = (
    "host",
    "port",
    "http_port",
    "http",
    "processors",
    "engines",
    "detokenizers",
    "model",
    "served_model_name",
    "max_model_len",
    "dtype",
    "quantization",
    "kv_cache_memory_bytes",
    "max_num_seqs",
    "device",
    "tls_cert_file",
    "auth_token_file",
    "log_level",
    "metrics_port",
)
"""Names of the options that ``--help`` shows, in order; ``--help-all`` shows the others, too."""
_SHOW_ALL = "services.common.config.flags.show_all"
_IGNORED = "services.common.config.flags.ignored"


class _SettingType(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.name = {int: "integer", float: "number", tuple: "list"}.get(setting.kind, "text")
        if setting.choices is not None:
            self.name = "|".join(map(str, setting.choices))
        elif setting.unit is not None:
            self.name = setting.unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _parse(self._setting, value, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        choices = map(str, self._setting.choices or ())
        return [CompletionItem(choice) for choice in choices if choice.startswith(incomplete)]

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str | None:
        return self.name.upper() if self._setting.choices is None else self.name


class _FlagType(click.types.BoolParamType):
    """``_SettingType`` for --x/--no-x: click requires a ``BoolParamType``. Only a variable's value arrives as text."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return _parse(self._setting, value, ctx)


class _SettingOption(click.Option):
    def __init__(self, setting: Setting) -> None:
        flags = f"{setting.flag}/{setting.negative_flag}" if setting.kind is bool else setting.flag
        if setting.default in (None, "", ()):
            note = ""
        elif setting.kind is bool:
            note = f"  [default: {(setting.flag if setting.default else setting.negative_flag).removeprefix('--')}]"
        else:
            note = f"  [default: {setting.format(setting.default)}]"
        super().__init__(
            [flags, setting.name],
            type=_FlagType(setting) if setting.kind is bool else _SettingType(setting),
            default=None,  # an absent option keeps the dataclass's default
            envvar=setting.variable,
            help=setting.help + note,
        )
        self.setting = setting

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Ignore a Kubernetes service link: the option keeps its default, and the log says why."""
        value = super().resolve_envvar_value(ctx)
        return None if value is not None and is_service_link(self.setting.variable, value) else value


class Command(click.Command):
    """A command that takes flags of other programs, and answers an unknown one with its correct spelling."""

    def __init__(self, *args: Any, foreign: ForeignFlags | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._foreign = foreign or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        translated = translate(args, options, self._foreign)
        self.report_ignored(ctx, translated.ignored)
        words = tuple(translated.words)  # click empties its list
        try:
            return super().parse_args(ctx, translated.words)
        except click.NoSuchOption as error:
            # For -tp, click reports -t.
            option = next((word for word in words if word.startswith(error.option_name)), error.option_name)
            raise click.UsageError(self._unknown(option.partition("=")[0], ctx), ctx) from None

    def report_ignored(self, ctx: click.Context, ignored: Mapping[str, str]) -> None:
        """Say which flags have no effect, and why."""
        for flag, why in ignored.items():
            click.echo(f"warning: {flag} has no effect: {why}", err=True)

    def _unknown(self, option: str, ctx: click.Context) -> str:
        entry = entry_of(option, self._foreign)
        if isinstance(entry, Alias):
            called = "--" + entry.option.replace("_", "-")
            return f"{option} is called {called} here, and is no option of `{ctx.command_path}`."
        if isinstance(entry, str):
            return f"{option} {entry}."
        flags = [flag for param in self.get_params(ctx) for flag in (*param.opts, *param.secondary_opts)]
        near = difflib.get_close_matches(option.replace("_", "-"), flags, n=1, cutoff=TYPO_SIMILARITY)
        if near:
            return f"unknown option {option}; did you mean {near[0]}?"
        help_flag = "--help-all" if "--help-all" in flags else "--help"
        return f"unknown option {option}; `{ctx.command_path} {help_flag}` lists them all."


class SettingsCommand(Command):
    """A command whose ``--help`` shows the common options, and ``--help-all`` all of them by section."""

    def report_ignored(self, ctx: click.Context, ignored: Mapping[str, str]) -> None:
        """Leave it to ``ignored_flags``: a service's warnings are lines of its log, which is configured later."""
        ctx.meta[_IGNORED] = dict(ignored)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        own = [option for option in options if not isinstance(option, _SettingOption)]
        settings = {option.setting.name: option for option in options if isinstance(option, _SettingOption)}
        sections: dict[str, list[click.Option]] = {}
        if ctx.meta.get(_SHOW_ALL):
            for option in settings.values():
                sections.setdefault(section_title(option.setting), []).append(option)
        else:
            sections["Common options"] = [settings[name] for name in COMMON_OPTIONS if name in settings]
        write_sections(ctx, formatter, {**sections, "Options": own})
        formatter.write_paragraph()
        formatter.write_text("--any-option can also be given as the variable RINGLINE_ANY_OPTION.")
        if not ctx.meta.get(_SHOW_ALL):
            formatter.write_text(
                f"--help-all shows all {len(settings)} options; so does docs/reference/configuration.md."
            )


def write_sections(
    ctx: click.Context, formatter: click.HelpFormatter, sections: Mapping[str, Iterable[click.Option]]
) -> None:
    """Write options under titles, without hidden options and empty sections."""
    for title, options in sections.items():
        records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def _show_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_SHOW_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def section_title(setting: Setting) -> str:
    """The title of a setting's section: the first line of its dataclass's docstring, up to a ";"."""
    first_line = (setting.section.__doc__ or setting.section.__name__).partition("\n")[0]
    return first_line.partition(";")[0].rstrip(".")


def with_settings(settings: Iterable[Setting]) -> Callable[[click.Command], click.Command]:
    """Add an option for each setting to a command (the first of several with the same name), and ``--help-all``."""
    seen: dict[str, Setting] = {}
    for setting in settings:
        seen.setdefault(setting.name, setting)

    def decorate(command: click.Command) -> click.Command:
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options and exit.",
        )
        command.params += [*map(_SettingOption, seen.values()), help_all]
        return command

    return decorate


def ignored_flags() -> dict[str, str]:
    """The flags without effect on the line of the running ``SettingsCommand``, each with the reason."""
    ignored: dict[str, str] = click.get_current_context().meta.get(_IGNORED, {})
    return ignored


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a command that were set, by flag or variable."""
    return {name: value for name, value in values.items() if value is not None}


def build_settings(defaults: T, values: Mapping[str, Any]) -> T:
    """``build``, with an unusable value reported as a usage error of click."""
    try:
        return build(defaults, values)
    except SettingError as error:
        raise _bad_value(error.option, error, None) from None


def _parse(setting: Setting, value: Any, ctx: click.Context | None) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return setting.parse(value)
    except SettingError as error:
        raise _bad_value(setting.name, error, ctx) from None


def _bad_value(name: str, error: SettingError, ctx: click.Context | None) -> click.BadParameter:
    flag = "--" + name.replace("_", "-")
    message = f"{error.value!r} is not usable: expected {error.accepted}"
    return click.BadParameter(message, ctx=ctx, param_hint=f"{flag} (RINGLINE_{name.upper()})")
