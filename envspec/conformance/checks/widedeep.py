"""Wide & Deep on a table: the longest chain of packages, from pandas to torchvision, up to a prediction."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from envspec.conformance import imports
from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import Trial

_WORDS = {"one": ("a", "b", "c"), "other": ("d", "e", "f")}
_NUMBERS = ("x", "y")


def check(trial: Trial) -> None:
    """Raises NotRun where the stack has no pytorch_widedeep."""
    torch = imports.torch(trial)
    if not trial.order.cuda:
        # Little is computed at a time: on a busy machine threads wait for each other longer than they work.
        torch.set_num_threads(1)
    imports.load(trial, "pytorch_widedeep")
    with trial.phase("preprocessing"):
        table, labels = _table(trial.order.seed)
        wide, deep = _preprocessed(table)
        known = len(labels) * 3 // 4
    with trial.phase("training"):
        trainer = _trained(trial, torch, (wide, deep), labels, known)
        found = trainer.predict(X_wide=wide[0][known:], X_tab=deep[0][known:], batch_size=512)
    held = labels[known:]
    accuracy, ones = float((found == held).mean()), float(held.mean())
    told = f"{accuracy:.3f} of {len(held)} rows not trained on; always saying the same: {max(ones, 1 - ones):.3f}"
    trial.within("accuracy above the baseline", accuracy - max(ones, 1 - ones), limit("widedeep.gain"), told=told)
    losses = trainer.history["train_loss"]
    trial.within("last loss to the first", losses[-1] / losses[0], limit("widedeep.loss"))


def _table(seed: int) -> tuple[Any, Any]:
    """(rows, labels of 0 and 1): what the words and the numbers weigh decides, without noise."""
    numpy: Any = importlib.import_module("numpy")
    pandas: Any = importlib.import_module("pandas")
    made = numpy.random.RandomState(seed)
    count = SIZES["widedeep.rows"]
    table = pandas.DataFrame(
        {
            **{name: made.choice(words, count) for name, words in _WORDS.items()},
            **{name: made.randn(count) for name in _NUMBERS},
        }
    )
    weights = {"a": 1.5, "b": 0.0, "c": -1.5, "d": 1.0, "e": 0.0, "f": -1.0}
    score = table["one"].map(weights) + table["other"].map(weights) + 2 * table["x"] - table["y"]
    return table, (score > 0).astype("int64").to_numpy()


def _preprocessed(table: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """((inputs of the wide part, its preprocessor), (inputs of the deep part, its preprocessor))."""
    preprocessing: Any = importlib.import_module("pytorch_widedeep.preprocessing")
    words = list(_WORDS)
    wide = preprocessing.WidePreprocessor(wide_cols=words, crossed_cols=[tuple(words)])
    with warnings.catch_warnings():
        # Numbers are of unit variance already; 1.5 and 1.7 have different words for "leave them".
        warnings.simplefilter("ignore", UserWarning)
        deep = preprocessing.TabPreprocessor(cat_embed_cols=words, continuous_cols=list(_NUMBERS))
        return (wide.fit_transform(table), wide), (deep.fit_transform(table), deep)


def _trained(trial: Trial, torch: Any, inputs: tuple[Any, Any], labels: Any, known: int) -> Any:
    models: Any = importlib.import_module("pytorch_widedeep.models")
    trainer: Any = importlib.import_module("pytorch_widedeep").Trainer
    (wide_rows, _), (deep_rows, deep) = inputs
    torch.manual_seed(trial.order.seed)
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
        device=trial.device,
        seed=trial.order.seed,
    )
    trained.fit(
        X_wide=wide_rows[:known],
        X_tab=deep_rows[:known],
        target=labels[:known],
        n_epochs=SIZES["widedeep.epochs"],
        batch_size=64,
    )
    return trained
