"""A server's configuration -> messages of AdminService."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fanlight.v1 import admin_pb2, media_pb2
from fanlight_engine.settings import CHECKPOINT, DEFAULT, DEVICE, ENVIRONMENT, FILE, FLAG, MEMORY, Setting
from fanlight_server.config_report import ConfigReport

if TYPE_CHECKING:
    from fanlight_engine.checkpoints.description import CheckpointDescription
    from fanlight_engine.client import CoreFacts

_SOURCES = {
    FLAG: admin_pb2.SETTING_SOURCE_FLAG,
    ENVIRONMENT: admin_pb2.SETTING_SOURCE_ENVIRONMENT,
    FILE: admin_pb2.SETTING_SOURCE_FILE,
    CHECKPOINT: admin_pb2.SETTING_SOURCE_CHECKPOINT,
    DEFAULT: admin_pb2.SETTING_SOURCE_DEFAULT,
    MEMORY: admin_pb2.SETTING_SOURCE_MEMORY,
    DEVICE: admin_pb2.SETTING_SOURCE_DEVICE,
}
_MODALITIES = {
    "text": media_pb2.MODALITY_TEXT,
    "image": media_pb2.MODALITY_IMAGE,
    "video": media_pb2.MODALITY_VIDEO,
}


def get_config_response(report: ConfigReport, core: CoreFacts | None) -> admin_pb2.GetConfigResponse:
    """`core` is what was decided while loading; None until then."""
    decided = report if core is None else report.once_loaded(core)
    parts = () if core is None else core.memory.parts()
    return admin_pb2.GetConfigResponse(
        checkpoint=_checkpoint(decided.checkpoint),
        settings=[_setting(setting) for setting in decided.settings],
        is_loaded=core is not None,
        memory=[admin_pb2.MemoryPart(part=part, bytes=size) for part, size in parts],
    )


def _checkpoint(found: CheckpointDescription) -> admin_pb2.CheckpointFacts:
    return admin_pb2.CheckpointFacts(
        name=found.name,
        path=found.path,
        kind=found.kind,
        family=found.family,
        decoder=found.decoder,
        tower=found.tower,
        modalities=[_MODALITIES[kind] for kind in found.modalities],
        context_length=found.context_length,
        vocabulary_size=found.vocabulary_size,
        dtype=found.dtype,
        quantization=found.quantization,
        fingerprint=found.fingerprint,
        has_chat_template=found.has_chat_template,
        tokenizer_class=found.tokenizer_class,
        unapplied_settings=found.unapplied_settings,
    )


def _setting(setting: Setting) -> admin_pb2.Setting:
    overrode = [
        admin_pb2.OverriddenValue(source=_SOURCES[source], value=_text(value), json=json.dumps(value))
        for source, value in setting.overrode
    ]
    return admin_pb2.Setting(
        name=setting.name,
        value=_text(setting.value),
        json=json.dumps(setting.value),
        source=_SOURCES[setting.source],
        overrode=overrode,
    )


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
