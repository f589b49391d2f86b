"""What a request demands of the form of its answer, as a constraint that the engine can keep."""

from dovetail.engines.engine import Constraint
from dovetail.preparation import Prepared
from dovetail.service import Served
from dovetail_model import InvalidRequest
from dovetail_parsers import constraint


def guidance(served: Served, prepared: Prepared) -> Constraint | None:
    """The constraint; None where nothing is demanded or the engine cannot keep any."""
    request, model = prepared.request, served.model
    if "gbnf" not in served.engine.abilities.constraints:
        return None
    try:
        text = constraint(
            model.tool_parser,
            model.reasoning_parser,
            tools=request.tools,
            choice=request.tool_choice,
            output=request.output,
            in_reasoning=prepared.prompt.in_reasoning,
        )
    except ValueError as error:
        raise InvalidRequest(str(error), param="tool_choice") from error
    return None if text is None else Constraint("gbnf", text)
