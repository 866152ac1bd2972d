"""Another library's environment, as it comes: TextArena's game of guessing a number from 1 to 20 in ten turns.

The prompt, the hints (higher, lower), the rule about invalid moves and the reward are the game's: 1 for the number, and
when the game ends without it, how near the last valid guess was. A policy that has never said a number in the form that
the game asks for gets 0; one that only learns the form gets about two thirds; one that uses the hints gets 1.

The held-out games have other seeds. There are only twenty numbers, and none of them is ever seen by the policy, so what
can be learned is how to play.
"""

from practicum.environments import textarena

GAME = "GuessTheNumber-v0"
GIVEN = {"max_turns": 12, "max_tokens": 12, "stop": ["\n"]}

TRAIN = textarena.tasks(GAME, 64, **GIVEN)
HELDOUT = textarena.tasks(GAME, 48, split="heldout", **GIVEN)
