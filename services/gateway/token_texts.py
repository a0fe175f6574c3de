"""A cache of tokens' bytes, from processors: log probabilities name tokens by their text."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from ringline import AsyncClient
from ringline.errors import NotFound

from services.gateway.model_names import find_model

MAX_TOKENIZERS = 4
"""In the cache, which drops the least recently used."""
_IDS_PER_CALL = 4096

_known: OrderedDict[str, dict[int, bytes]] = OrderedDict()
"""By tokenizer digest."""


class TokenTexts:
    """The texts of a model's tokens. ``load`` ids before use."""

    def __init__(self, client: AsyncClient, model: str, known: dict[int, bytes], ids_per_call: int) -> None:
        """Use ``of_model``."""
        self._client = client
        self._model = model
        self._bytes = known
        self._ids_per_call = ids_per_call

    @classmethod
    async def of_model(cls, client: AsyncClient, *names: str) -> TokenTexts:
        """``names``: those that it may have for the caller. Raises ``NotFound`` unless the caller may use the model."""
        models = await client.models()
        model = next((found for name in names if (found := find_model(name, models)) is not None), None)
        if model is None:
            raise NotFound(f"model {names[0][:200]!r} is not served any more")
        known = _known.setdefault(model.tokenizer_digest, {})
        _known.move_to_end(model.tokenizer_digest)
        if len(_known) > MAX_TOKENIZERS:
            _known.popitem(last=False)
        return cls(client, model.name, known, min(_IDS_PER_CALL, model.max_model_len))

    async def load(self, token_ids: Iterable[int]) -> None:
        """Fetch ids not yet known."""
        missing = [token_id for token_id in set(token_ids) if token_id not in self._bytes]
        for start in range(0, len(missing), self._ids_per_call):
            part = missing[start : start + self._ids_per_call]
            pieces = await self._client.token_pieces(part, model=self._model)
            self._bytes.update(zip(part, pieces, strict=True))

    def raw(self, token_id: int) -> bytes:
        """A token's bytes."""
        return self._bytes[token_id]

    def name(self, token_id: int) -> str:
        r"""A token's text; for part of a character its bytes, like ``bytes:\xe2\x82``, so that names differ."""
        raw = self._bytes[token_id]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
