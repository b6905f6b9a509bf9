"""What an operator is told at start of settings that reach beyond the process, or that do nothing as they stand."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from fanlight_engine.config import CheckpointTraits, EngineConfig, Setting
from fanlight_engine.contradictions import unused_settings
from fanlight_engine.inputs.media.sources.addresses import is_public


def notices(config: EngineConfig) -> list[str]:
    """One line each; none where nothing is noteworthy."""
    return ["note: " + told for told in (*_of_urls(config), *_of_directories(config))]


def notices_of_checkpoint(settings: Iterable[Setting], traits: CheckpointTraits) -> list[str]:
    """What an environment or a file says of media that this checkpoint does not take: one line for all of it."""
    unused = ", ".join(map(str, unused_settings({setting.name: setting for setting in settings}, traits)))
    return [f"note: {traits.name} does not take what these settings are about: {unused}"] if unused else []


def _of_urls(config: EngineConfig) -> list[str]:
    hosts = [host.strip() for host in config.media_url_hosts.split(",") if host.strip()]
    if not config.allow_media_urls:
        return ["media_url_hosts is set and allow_media_urls is off: no URL is fetched"] if hosts else []
    where = f"from {', '.join(hosts)}; ports {config.media_url_ports}; public addresses only"
    never = [
        f"{host} in media_url_hosts is not a public address and is never fetched" for host in hosts if _is_private(host)
    ]
    return [f"fetches the media URLs that requests name, {where}", *never]


def _of_directories(config: EngineConfig) -> list[str]:
    told = []
    if config.media_store_directory and config.media_store_bytes:
        told.append(f"uploads stay in {config.media_store_directory}, unencrypted, also while no server runs")
    if config.frame_manifest_root:
        told.append(f"requests can name any file below {config.frame_manifest_root} as a frame of a clip")
    return told


def _is_private(host: str) -> bool:
    """Whether the host, as an operator writes it, can be told to be private without looking it up."""
    name = host.lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = name.removeprefix("[").removesuffix("]")
    try:
        ip_address(address)
    except ValueError:
        return False
    return not is_public(address)
