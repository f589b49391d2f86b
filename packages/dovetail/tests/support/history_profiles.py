"""How often something happens in a crash history."""

import random
from dataclasses import dataclass, replace

WEEK_SECONDS = 7 * 86_400.0


@dataclass(frozen=True)
class Profile:
    """How often something happens: probabilities per turn, unless stated otherwise.

    `abandoned_seconds`: after which an expired lease is removed and leaves a gap.
    `abandoned`: how often a crashed server is never started again, if there is another.
    `alike`: how often a text is one of the few that all conversations use; others are unique.
    `fault_interval`: the mean time between two failures of a store, in seconds.
    `fault_seconds`: the maximum duration of a failure.
    `data_loss`: the share of restarts and evictions in the failures of a Redis server.
    `intensity`: factors of the failures, of which each history has one.
    `away`: how often a client returns only after a large part of the maximum age of entries.
    `max_age`: the maximum age of entries, in seconds.
    `pace`: the factor of the time that clients and models take.
    `renders`: whether prompts are rendered, which takes several times as long.
    """

    turns: int = 14
    clients: int = 3
    conversation_turns: int = 3
    alike: float = 1.0
    crash: float = 0.33
    abandoned: float = 0.1
    abandoned_seconds: float = 8.0
    disconnect: float = 0.25
    unrecorded: float = 0.05
    regenerate: float = 0.05
    fork: float = 0.05
    named_session: float = 0.3
    away: float = 0.02
    fault_interval: float = 2.0
    fault_seconds: float = 6.0
    data_loss: float = 0.2
    lost_folder: float = 0.05
    store_bytes: tuple[int, ...] = (1 << 30,)
    cache_bytes: tuple[int, ...] = (1 << 20,)
    max_age: float = 40.0
    pace: float = 1.0
    renders: bool = False
    intensity: tuple[float, ...] = (1.0,)

    def choose(self, dice: random.Random) -> "Profile":
        """Choose how much fails in one history."""
        factor = dice.choice(self.intensity)
        return replace(
            self,
            crash=self.crash * factor,
            disconnect=self.disconnect * factor,
            unrecorded=self.unrecorded * factor,
            fault_interval=self.fault_interval / factor,
            cache_bytes=(dice.choice(self.cache_bytes),),
        )


# A few failures leave more turns to be recognized, many failures overlap.
STRESS = Profile(
    store_bytes=(5_000, 1 << 30), cache_bytes=(1, 1 << 20), intensity=(0.05, 0.15, 0.4, 1.0)
)
# One crash per 1000 turns, one failure of the store per about 5000 turns. A tenth of all messages
# are alike, such as "hi" or "continue". Crashed servers are started again, and Redis keeps its
# data: otherwise the result shows only how early in a history a gap was that lasts until its end.
REALISTIC = Profile(
    turns=5000,
    clients=4,
    conversation_turns=12,
    alike=0.1,
    crash=0.001,
    abandoned=0.0,
    abandoned_seconds=600.0,
    disconnect=0.02,
    unrecorded=0.0,
    regenerate=0.01,
    fork=0.01,
    named_session=0.0,
    away=0.0,
    fault_interval=3000.0,
    fault_seconds=10.0,
    data_loss=0.0,
    lost_folder=0.0,
    max_age=WEEK_SECONDS,
)
PROFILES = {
    "stress": STRESS,
    # Clients return before a lease has expired.
    "hurried": replace(STRESS, pace=0.1),
    "rendered": replace(STRESS, renders=True),
    "realistic": REALISTIC,
    "realistic-alike": replace(REALISTIC, alike=1.0),
    "realistic-losses": replace(REALISTIC, abandoned=0.1, data_loss=0.2),
}
