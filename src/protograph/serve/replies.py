"""What the routes answer, as JSON, described for OpenAPI."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

ClassLabel = str | int | float
FILE_STATE = Field(description="The state of the model file that the answer comes from.")
CLASS = Field(alias="class", description="The class.")


class _Reply(BaseModel):
    """A JSON object with these fields and no others."""

    model_config = ConfigDict(extra="forbid")


class ErrorReply(_Reply):
    """Why a request was refused."""

    error: str = Field(description="What is wrong, and the way out: the sentence that the command prints.")


class HealthReply(_Reply):
    """That the server answers."""

    status: str = Field(description="`ok`.")


class ProbabilityReply(_Reply):
    """How probable a class is."""

    name: ClassLabel = CLASS
    probability: float


class ImageReply(_Reply):
    """What an image shows, or why it cannot be read."""

    file: str = Field(description="The name of the file, without folders.")
    error: str | None = Field(None, description="Why it cannot be read. Then the other fields are missing.")
    name: ClassLabel | None = Field(None, alias="class", description="The answer: a class, or the label of unknown images.")
    unknown: bool | None = Field(None, description="Whether it is like no class.")
    likeness: float | None = Field(None, description="How like a class it is; below a limit it is unknown.")
    nearest: list[ProbabilityReply] | None = Field(None, description="The most probable classes.")


class PredictReply(_Reply):
    """What images show."""

    version: str = FILE_STATE
    results: list[ImageReply] = Field(description="An answer for each image, in their order.")


class RelatedReply(_Reply):
    """What a related class brings to the score of another one."""

    name: ClassLabel = CLASS
    relation: str
    value: float


class ScoreReply(ProbabilityReply):
    """How probable a class is, and what its score consists of."""

    logit: float
    score: float
    own: float = Field(description="What its own examples bring.")
    constant: float
    related: list[RelatedReply] = Field(description="What related classes bring.")


class HeatmapReply(_Reply):
    """Which parts of an image spoke for a class."""

    name: ClassLabel = CLASS
    against: ClassLabel | None = Field(description="The class that it is compared with; null for the mean of all others.")
    score: float
    rows: int
    columns: int
    scores: list[list[float]] = Field(description="What each part brings to the score.")
    crop: list[float] = Field(description="Left, top, right and bottom of what was looked at, as shares of the upright image.")


class ExplainReply(_Reply):
    """What an image shows, and why."""

    version: str = FILE_STATE
    file: str = Field(description="The name of the file, without folders.")
    name: ClassLabel = Field(alias="class", description="The answer: a class, or the label of unknown images.")
    unknown: bool = Field(description="Whether it is like no class.")
    likeness: float = Field(description="How like a class it is; below a limit it is unknown.")
    nearest: list[ScoreReply] = Field(description="The most probable classes, with what their scores consist of.")
    heatmap: HeatmapReply | None = Field(description="Which parts of the image spoke for the class.")
    heatmap_note: str | None = Field(description="Why there is no heat map.")


class ModelReply(_Reply):
    """What the model file is."""

    file: str = Field(description="Its name.")
    version: str = FILE_STATE
    classes: int = Field(description="The number of classes.")
    fitted: int = Field(description="How many of them were fitted.")
    added: int = Field(description="How many of them were added.")
    encoder: str = Field(description="The frozen network for the images.")
    size: list[int] = Field(description="Height and width of the images that it takes.")
    unknown: float | None = Field(description="The share of known images that may be answered as unknown.")
    unknown_label: ClassLabel = Field(description="The answer for images that are like no class.")
    prior: Any = Field(description="How likely classes are before an image is seen.")
    relations: list[str] = Field(description="What tells how classes relate.")
    has: dict[str, bool] = Field(description="What it can show: heat maps, thumbnails, and more.")
    limits: dict[str, int] = Field(description="What one request may have.")
    history: dict[str, str | None] = Field(description="What `undo` and `redo` would do.")


class ClassReply(_Reply):
    """A class."""

    name: ClassLabel = CLASS
    added: bool
    examples: int | None
    thumbnails: int
    shown: list[int]


class ClassesReply(_Reply):
    """All classes."""

    version: str = FILE_STATE
    classes: list[ClassReply] = Field(description="The classes in alphabetical order, with numbers of examples and thumbnails.")


class ExampleReply(_Reply):
    """An example of a class."""

    index: int
    thumbnail: bool


class ExamplesReply(_Reply):
    """The examples of a class."""

    version: str = FILE_STATE
    name: ClassLabel = CLASS
    examples: list[ExampleReply] = Field(description="The index of each, and whether it has a thumbnail.")


class RelationReply(_Reply):
    """A class that another one is related to."""

    name: ClassLabel = CLASS
    relation: str
    similarity: float


class SuggestionReply(_Reply):
    """A class that another one may be related to."""

    name: ClassLabel = CLASS
    similarity: float
    source: str


class RelationsReply(_Reply):
    """How a class relates to others."""

    version: str = FILE_STATE
    name: ClassLabel = CLASS
    relations: list[RelationReply] = Field(description="What was told, the most similar classes first.")
    suggestions: list[SuggestionReply] = Field(description="What it is likely to be similar to, and who says so.")


class CheckReply(_Reply):
    """Whether the model was taught enough."""

    file: str = Field(description="The name of the model file.")
    version: str = FILE_STATE
    verdict: str = Field(description="Whether it was, in words.")
    accuracy: float | None = Field(description="The share of right answers, the mean over classes.")
    covers_fitted: bool = Field(description="Whether images of fitted classes were asked too.")
    advice: list[str] = Field(description="What to add.")
    notes: list[str] = Field(description="What else there is to know.")
    classes: list[dict[str, Any]] = Field(description="Each class: examples, right answers, what it was taken for.")
    pairs: list[dict[str, Any]] = Field(description="The pairs of classes that are confused.")
    images: list[dict[str, Any]] = Field(description="For each image that was asked: its class and the answer.")


class PlaceReply(_Reply):
    """Where a class stands on the map."""

    name: ClassLabel = CLASS
    x: float
    y: float
    added: bool


class LineReply(_Reply):
    """A line between two classes of the map."""

    begin: ClassLabel = Field(alias="from")
    end: ClassLabel = Field(alias="to")
    weight: float
    relation: str


class MapReply(_Reply):
    """The map of the classes."""

    version: str = FILE_STATE
    labels: list[PlaceReply] = Field(description="The place of each class, from -1 to 1.")
    edges: list[LineReply] = Field(description="Lines between related classes.")


class StepReply(_Reply):
    """A change of the model file."""

    number: int
    what: str
    when: str
    classes: int
    undone: bool


class HistoryReply(_Reply):
    """The changes of the model file."""

    version: str = FILE_STATE
    changes: list[StepReply] = Field(description="The changes, the newest first.")


class ChangeReply(_Reply):
    """What a change did."""

    version: str = FILE_STATE
    what: str = Field(description="What was done, in words.")
    classes: int = Field(description="The number of classes now.")
    held_out: dict[str, float | None] = Field(
        description="The share of right answers about examples left out, `before` and `after`, where that can be told quickly."
    )
    notes: list[str] = Field(description="What else there is to know.")
