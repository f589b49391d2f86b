"""The declared fields of every API."""

from dovetail_protocols.chat.fields import CHAT_FIELDS
from dovetail_protocols.completions.fields import COMPLETION_FIELDS
from dovetail_protocols.messages.fields import MESSAGES_FIELDS
from dovetail_protocols.responses.fields import RESPONSES_FIELDS

FIELD_REGISTRIES = (MESSAGES_FIELDS, RESPONSES_FIELDS, CHAT_FIELDS, COMPLETION_FIELDS)
