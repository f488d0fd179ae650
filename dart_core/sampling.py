"""Sampling settings: what was asked, else what the model's generation_config says, else greedy."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from dart_core.options import GenerateOptions
from kernels.accept import Sampling


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 do nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0


def resolve_sampling(options: GenerateOptions, defaults: Mapping[str, float]) -> SamplingSettings:
    """Fills what `options` leaves open from `defaults` (generation_config's names), else plainly greedy.

    A temperature asked for without filters still takes the model's filters; greedy needs none.
    """
    plain = SamplingSettings()

    def pick(name: str) -> float:
        asked = getattr(options, name)
        return float(asked if asked is not None else defaults.get(name, getattr(plain, name)))

    return SamplingSettings(
        pick("temperature"),
        int(pick("top_k")),
        pick("top_p"),
        pick("min_p"),
        pick("repetition_penalty"),
        options.seed,
    )


def sampling_tensors(settings: SamplingSettings, eos: frozenset[int]) -> Sampling:
    """The settings as device tensors; `limit` is set before every step."""
    return Sampling(
        knobs=torch.tensor(
            [
                settings.temperature,
                settings.top_k,
                settings.top_p,
                settings.min_p,
                settings.repetition_penalty,
            ]
        ),
        seed=torch.tensor([settings.seed]),
        limit=torch.ones(1, dtype=torch.int64),
        eos=torch.tensor(sorted(eos), dtype=torch.int64),
    )
