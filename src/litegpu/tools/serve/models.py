"""The models of a server, by name and version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from litegpu.errors import RequestError, did_you_mean
from litegpu.tools.serve.web import Model

_Served = TypeVar("_Served", bound=Model)


class Models(Generic[_Served]):
    """The served models by name and version."""

    def __init__(self, models: Sequence[_Served]) -> None:
        self._models: dict[str, dict[str, _Served]] = {}
        for each in models:
            self._models.setdefault(each.name, {})[each.version] = each

    @property
    def names(self) -> list[str]:
        """The names of all models."""
        return [*self._models]

    def versions(self, name: str) -> Mapping[str, _Served]:
        """Return the versions of a model, the oldest first. Raises RequestError (404)."""
        if name not in self._models:
            raise RequestError(
                f"There is no model '{name[:80]}'.{did_you_mean(name[:80], self._models)}", 404
            )
        return self._models[name]

    def find(self, name: str, version: str | None = None) -> _Served:
        """Return a version of a model, the newest by default. Raises RequestError (404)."""
        versions = self.versions(name)
        version = version or max(versions, key=int)
        if version not in versions:
            raise RequestError(
                f"The model '{name}' has no version '{version[:40]}'. "
                f"It has {', '.join(versions)}.",
                404,
            )
        return versions[version]
