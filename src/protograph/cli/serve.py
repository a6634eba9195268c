"""The verb serve."""

import logging
import warnings
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

import protograph as pg
from protograph._internal.errors import InputError
from protograph.cli.display import reported, visible
from protograph.cli.options import BackboneWeights, Plugins, load_plugins
from protograph.encoders import BACKBONE_NAMES, strongest_backbone

LARGEST_AT_ONCE = 8  # requests of the largest size that are held in memory; further ones are asked to come again
USUAL_UNKNOWN = 0.05  # share of known images that a file begun here may answer as unknown
EXTRA = ("fastapi", "uvicorn", "python_multipart", "starlette", "pydantic", "anyio", "h11")


@reported
def serve_command(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Model file, or with --new the one to begin.", show_default=False)
    ],
    new: Annotated[
        bool, typer.Option("--new", help="Begin a model file without a class: the page teaches it the first ones.")
    ] = False,
    backbone: Annotated[
        str | None,
        typer.Option(help=f"With --new, the frozen network for the images: {BACKBONE_NAMES}. (default: efficientnet-lite0)"),
    ] = None,
    relations: Annotated[
        list[str] | None,
        typer.Option(
            help="With --new, what is asked how classes relate, such as wordnet. Without it, a relation of the model's that "
            "reads a file, such as embeddings:FILE, to ask it about new classes. Repeatable.",
            show_default=False,
        ),
    ] = None,
    unknown: Annotated[
        float | None,
        typer.Option(
            help="With --new, the share of known images that may be answered 'unknown', once there are enough images to tell. "
            f"(default: {USUAL_UNKNOWN})",
            show_default=False,
        ),
    ] = None,
    backbone_weights: BackboneWeights = None,
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 lets others in the network in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen at; 0 takes one that is free.", min=0, max=65535)] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A further name of this machine that links to it may have, such as lab.local; repeatable.", show_default=False
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="The token of the link, for scripts; better given as the variable PROTOGRAPH_TOKEN, which other users do not "
            "see. (default: a new one at each start)",
            envvar="PROTOGRAPH_TOKEN",
            show_default=False,
            show_envvar=False,
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="A certificate file, to serve over https.", show_default=False)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate.", show_default=False)] = None,
    max_bytes: Annotated[int, typer.Option(help="Most bytes of a request.", min=1)] = 128_000_000,
    max_pixels: Annotated[int, typer.Option(help="Most pixels of an image.", min=1)] = 64_000_000,
    max_files: Annotated[int, typer.Option(help="Most images of a request.", min=1)] = 200,
    max_classes: Annotated[int, typer.Option(help="Most classes of the model.", min=1)] = 2000,
    max_requests: Annotated[int, typer.Option(help="Most requests at a time.", min=1)] = 256,
    log: Annotated[bool, typer.Option("--log", help="Write a line for each request: its route, status and time.")] = False,
    plugin: Plugins = None,
) -> None:
    """Teach and ask a classifier in a browser, or over HTTP.

    It prints a link to the page. Only this machine reaches it, unless --host says otherwise; whoever has the link can change
    the model file. The command and other pages may use the file at the same time. Ctrl-C ends it once all requests are
    answered.

    Examples:
        protograph serve birds.pg
        protograph serve --new birds.pg --open
    """
    try:
        from protograph.serve.access import Access, check_token, new_token
        from protograph.serve.application import Application
        from protograph.serve.limits import Limits
        from protograph.serve.model_host import Opening
        from protograph.serve.running import Place, run_server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRA:
            raise
        raise InputError('serve needs packages that are not installed: pip install "protograph[serve]"') from error

    load_plugins(plugin)
    if (tls_cert is None) != (tls_key is None):
        raise InputError("a certificate and its key belong together: give both --tls-cert and --tls-key")
    for file in (tls_cert, tls_key):
        if file is not None and not file.is_file():
            raise InputError(f"there is no file {file}: give a certificate and its key in PEM format")
    if token is not None:
        check_token(token)
    token = token or new_token()
    limits = Limits(max_bytes, max_pixels, max_files, max_classes, max_requests, memory=LARGEST_AT_ONCE * max_bytes)
    place = Place(host, port, tls_cert, tls_key)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it would tell of each form that cannot be read
    if log:
        logging.getLogger("protograph.serve").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of metadata that is not used
    with place.bind() as bound:
        if new:
            if backbone_weights is not None:
                raise InputError("--backbone-weights would be ignored with --new: name the weights by --backbone")
            begin(model, backbone, relations, USUAL_UNKNOWN if unknown is None else unknown)
        for option, value in (("--backbone", backbone), ("--unknown", unknown)):
            if value is not None and not new:
                raise InputError(f"{option} {value} would be ignored without --new: leave it out")
        opening = Opening(model, backbone_weights, () if new else tuple(relations or ()))
        application = Application.of(opening, limits)
        link = place.link(bound.getsockname()[1], token)

        def announce() -> None:
            print(visible(f"{model} is served at {link}"), flush=True)
            if not place.loopback and tls_cert is None:
                print("without --tls-cert, others in the network can read along, the token too", flush=True)
            if open_page:
                webbrowser.open(link)

        run_server(
            application, Access(token, place.loopback, tuple(name.lower() for name in allow_host or ())), place, bound, announce
        )
    print("stopped", flush=True)


def begin(path: Path, backbone: str | None, relations: list[str] | None, unknown: float) -> None:
    """Write a model file without a class.

    Raises:
        InputError: There is a file already.

    """
    if path.exists():
        raise InputError(f"{path} is there already: leave out --new to serve it, or name another file")
    encoder = backbone or strongest_backbone()
    pg.Classifier.empty(encoder, relations=relations or None, thumbnails=True, unknown=unknown).save(path)
