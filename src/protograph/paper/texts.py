"""The sentences of RESULTS.md that do not depend on the ledger."""

MADE_FROM = "Made from the ledger in"
FEWER_IMAGES = {"mini-imagenet": "100 training images per class fewer than the paper had"}
RECIPE_TEXTS = {
    "paper": "the paper's training",
    "fast": "a tenth to a fifth of the paper's training, in larger steps",
    "strong": "`fast`, mostly trained longer, but not as long as the paper's models, and with additions that the paper did "
    "not have: training images are also scaled, stretched, recoloured and partly erased; every block has 128 channels instead "
    "of 64 in two of them; test features are the mean of an image's and its mirror image's; PN+ trains on episodes of 20 "
    "classes; and on miniImageNet, GcGPN starts from a trained cosine classifier",
}
REACHES = (
    "A cell reaches the paper if its means over seeds of H-Mean and Joint-Joint are both at least the paper's value minus its "
    "interval{allowances}."
)
NO_CELLS = "The ledger has no cell of the paper's tables yet."
RELATION_GAINS = (
    "The gain over the dataset's default side information, and over none ({without}), with half of its 95 % interval. The "
    "interval covers test episodes and seeds; where marked *, it covers test episodes alone."
)
TRIALS = (
    "Each row is a change to a recipe and the measures after the last epoch. All numbers are of validation classes and images "
    "alone. The cells above are trained by the unchanged recipes. `protograph compare RUN --out results/trials.csv` adds a "
    "run. Where a row lacks some of the six measures, only the others are known."
)
CONCLUSIONS_CHECKED = (
    "Each conclusion is checked on all cells that the paper's sentence is about, by Joint-Joint and H-Mean unless the sentence "
    "names another measure. It is checked on our cells and, in the same way, on the paper's own numbers. It is supported if it "
    "is certainly true, contradicted if it is certainly not, and inconclusive otherwise."
)
CERTAINTY = (
    "The number behind ± is half of the difference's 95 % interval. The interval has two sources. The first is the test "
    "episodes: they are the same for all models but are counted as if each model had its own, which makes the interval rather "
    "too wide. The second is the spread between seeds.",
    "The spread is pooled over the cells of a dataset that are trained alike, though some of them may vary more than others. "
    "Second stages that started from the same first stage vary together. The spread is estimated by the recipe with the most "
    "degrees of freedom and is used for the other recipes, and for the paper's numbers, which are also of single runs. Where "
    "marked *, no spread is known, and the interval covers test episodes alone.",
    "A comparison is certain if its interval excludes 0. For the claims that something does not help, or is as good, the "
    "interval must exclude a difference of one point.",
    "One comparison can refute a claim about every comparison, and one measure can refute a claim about the mean by each "
    "measure. The more of them there are, the more certain it must be: its interval is taken at the error level divided by "
    "their number.",
    "The last column is our mean difference minus the paper's. If its interval excludes 0, the two disagree on the size of the "
    "effect, whatever the verdicts are.",
    "Where our models are compared with published numbers, as GFSL models are with few-shot ones, `strong` has the advantage "
    "of all its additions, which the other methods did not have.",
)
LAST_EPOCH = (
    "All numbers above are of the epoch that was best on the validation classes. There are few of these classes, so this table "
    "also shows what each run has after its last epoch."
)
LEARNED = (
    "The table shows the temperature of the relation's softmax and the scales of the operators in the selected epoch. All of "
    "them start from 1. For scales on the same rows, only proportions matter: compare the scale of the relation (of its blocks "
    "sn and nn) with that of identity-nn to see how much a novel class takes from relations and how much from its own examples."
)
FEW_SHOT = (
    "The measure is 5-way Novel-Novel on miniImageNet. The few-shot methods are as the paper quotes them. Below them are "
    "models for the joint label space, as the paper published them and as measured here. The published methods had 600 "
    "training images per class, ours had 500. By `strong`, our training images were changed in more ways, and test features "
    "also used each image's mirror image."
)
