"""Reports one call of ``generate``: times, tokens per second, memory of caches."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from distir_ext.text.display import Shown


@dataclass(frozen=True)
class GenerationReport(Shown):
    """Report of one call of ``generate``."""

    sequences: int
    """Sequences that were generated."""

    prompt_tokens: int
    """Tokens of the prompts, padding included, of all sequences."""

    new_tokens: int
    """Tokens that were generated, of all sequences."""

    prefill_seconds: float
    """Time that the workers took for the prompts, encoders included."""

    decode_seconds: float
    """Time that the workers took for all tokens but the first of each sequence."""

    seconds: float
    """Time of the whole call, with what the host chooses tokens by."""

    cache_bytes: int
    """Memory of the caches on all devices together."""

    cache_bytes_per_device: int
    """Memory of the caches on the device that holds most of them."""

    @property
    def tokens_per_second(self) -> float:
        """Tokens that decoding gives in a second; nan where there was one step."""
        decoded = self.new_tokens - self.sequences
        return decoded / self.decode_seconds if self.decode_seconds else float("nan")

    def data(self) -> dict[str, float]:
        """The figures by name, for JSON."""
        found = dataclasses.asdict(self)
        rate = self.tokens_per_second
        return found if math.isnan(rate) else {**found, "tokens_per_second": rate}

    def __str__(self) -> str:
        return (
            f"{self.new_tokens} tokens of {self.sequences} sequences in {self.seconds:.3g} s: "
            f"prefill of {self.prompt_tokens} tokens {self.prefill_seconds:.3g} s, then "
            f"{self.tokens_per_second:.4g} tokens/s; caches hold {self.cache_bytes:,} bytes, "
            f"{self.cache_bytes_per_device:,} per device"
        )
