"""Wide & Deep on a table, which uses the longest chain of packages: from pandas to torchvision."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import CheckContext

_WORDS = {"one": ("a", "b", "c"), "other": ("d", "e", "f")}
_NUMBERS = ("x", "y")


def check(context: CheckContext) -> None:
    """Raises NotRun if the stack has no pytorch_widedeep."""
    torch = context.load("torch")
    if not context.request.cuda:
        # On a busy machine threads would wait for each other longer than they compute.
        torch.set_num_threads(1)
    context.load("pytorch_widedeep")
    with context.phase("preprocessing"):
        table, labels = _table(context.request.seed)
        wide, deep = _preprocessed(table)
        split = len(labels) * 3 // 4
    with context.phase("training"):
        trainer = _trained(context, torch, (wide, deep), labels, split)
        found = trainer.predict(X_wide=wide[0][split:], X_tab=deep[0][split:], batch_size=512)
    held = labels[split:]
    accuracy, ones = float((found == held).mean()), float(held.mean())
    detail = f"{accuracy:.3f} of {len(held)} rows not trained on; the constant guess: {max(ones, 1 - ones):.3f}"
    context.within("accuracy above the baseline", accuracy - max(ones, 1 - ones), limit("widedeep.gain"), detail=detail)
    losses = trainer.history["train_loss"]
    context.within("last loss to the first", losses[-1] / losses[0], limit("widedeep.loss"))


def _table(seed: int) -> tuple[Any, Any]:
    """(rows, labels of 0 and 1): a weighted sum decides, without noise."""
    numpy: Any = importlib.import_module("numpy")
    pandas: Any = importlib.import_module("pandas")
    source = numpy.random.RandomState(seed)
    count = SIZES["widedeep.rows"]
    columns: dict[str, Any] = {}
    for name, words in _WORDS.items():
        columns[name] = source.choice(words, count)
    for name in _NUMBERS:
        columns[name] = source.randn(count)
    table = pandas.DataFrame(columns)
    weights = {"a": 1.5, "b": 0.0, "c": -1.5, "d": 1.0, "e": 0.0, "f": -1.0}
    score = table["one"].map(weights) + table["other"].map(weights) + 2 * table["x"] - table["y"]
    return table, (score > 0).astype("int64").to_numpy()


def _preprocessed(table: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """((inputs of the wide part, its preprocessor), (inputs of the deep part, its preprocessor))."""
    preprocessing: Any = importlib.import_module("pytorch_widedeep.preprocessing")
    words = list(_WORDS)
    wide = preprocessing.WidePreprocessor(wide_cols=words, crossed_cols=[tuple(words)])
    with warnings.catch_warnings():
        # Numbers have unit variance already; 1.5 and 1.7 have different options for no scaling.
        warnings.simplefilter("ignore", UserWarning)
        deep = preprocessing.TabPreprocessor(cat_embed_cols=words, continuous_cols=list(_NUMBERS))
        return (wide.fit_transform(table), wide), (deep.fit_transform(table), deep)


def _trained(context: CheckContext, torch: Any, inputs: tuple[Any, Any], labels: Any, split: int) -> Any:
    models: Any = importlib.import_module("pytorch_widedeep.models")
    trainer: Any = importlib.import_module("pytorch_widedeep").Trainer
    (wide_rows, _), (deep_rows, deep) = inputs
    torch.manual_seed(context.request.seed)
    model = models.WideDeep(
        wide=models.Wide(input_dim=int(wide_rows.max()), pred_dim=1),
        deeptabular=models.TabMlp(
            column_idx=deep.column_idx,
            cat_embed_input=deep.cat_embed_input,
            continuous_cols=list(_NUMBERS),
            mlp_hidden_dims=[32, 16],
        ),
    )
    trained = trainer(
        model,
        objective="binary",
        optimizers=torch.optim.Adam(model.parameters(), lr=0.01),
        num_workers=0,
        verbose=0,
        device=context.device,
        seed=context.request.seed,
    )
    trained.fit(
        X_wide=wide_rows[:split],
        X_tab=deep_rows[:split],
        target=labels[:split],
        n_epochs=SIZES["widedeep.epochs"],
        batch_size=64,
    )
    return trained
