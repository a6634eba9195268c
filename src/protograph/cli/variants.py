"""protograph variants"""

from rich.table import Table

from protograph.cli.display import escape, fit_terminal, reported, show
from protograph.cli.options import AsJson, Plugins, load_plugins
from protograph.variants import VARIANTS


@reported
def variants_command(plugin: Plugins = None, as_json: AsJson = False) -> None:
    """List the models by name, with the operators that make them.

    Examples:
        protograph variants
    """
    load_plugins(plugin)

    def made(narrow: bool) -> Table:
        table = Table("variant", "operators", *(() if narrow else ("transform", "objective", "after")), "what it is")
        for name, variant in VARIANTS.items():
            operators = escape(" + ".join(map(str, variant.operators)))
            more = () if narrow else (variant.theta, variant.objective, variant.after)
            table.add_row(escape(name), operators, *more, escape(variant.summary))
        return table

    rows = {
        name: {
            "operators": [str(op) for op in variant.operators],
            "theta": variant.theta,
            "objective": variant.objective,
            "after": variant.after,
            "summary": variant.summary,
        }
        for name, variant in VARIANTS.items()
    }
    show(rows, fit_terminal(made), as_json)
