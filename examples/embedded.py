"""A program with an embedded yard: a lifespan, two callers with different profiles, and a sink for the records."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from toolyard import Call, Caller, Envelope, Operation, Profile, Record, Toolset, Yard, tool

READERS = Profile(name="readers", toolsets=(Toolset(name="reading", operations=(Operation.QUERY,)),))


@dataclass
class Database:
    """Stands for a connection that must be opened and closed."""

    notes: list[str] = field(default_factory=list[str])

    async def close(self) -> None:
        """Close the connection."""
        print("database closed")


@asynccontextmanager
async def lifespan(_: Yard) -> AsyncGenerator[Database]:
    """Open the database with the yard, and close it with the yard."""
    database = Database()
    try:
        yield database
    finally:
        await database.close()


@tool(operation="query")
async def list_notes(call: Call) -> list[str]:
    """List the notes."""
    database: Database = call.state
    return database.notes


@tool(operation="command")
async def add_note(text: str, call: Call) -> int:
    """Write a note; answers how many there are."""
    database: Database = call.state
    database.notes.append(f"{text} ({call.caller.identity})")
    return len(database.notes)


def print_record(record: Record) -> None:
    """Print one line for each call; a record has no arguments and no result."""
    print(f"  record: {record.identity} called {record.tool}: {record.code or 'ok'}")


def summary(answer: Envelope) -> str:
    """Return the data of an answer, or its failure."""
    return str(answer.data) if answer.error is None else f"{answer.error.code}: {answer.error.message}"


async def main() -> None:
    """Call one yard as two callers."""
    ada = Caller(identity="ada")
    guest = Caller(identity="guest", profile=READERS)
    async with Yard("notes", tools=[list_notes, add_note], profiles=[READERS], lifespan=lifespan, sinks=[print_record]) as yard:
        for caller in (ada, guest):
            print(f"{caller.identity} sees {', '.join(spec.name for spec in yard.list(caller.profile))}")
            print(f"  add_note answers {summary(await yard.call('add_note', {'text': 'Buy bread'}, caller=caller))}")
            print(f"  list_notes answers {summary(await yard.call('list_notes', caller=caller))}")


if __name__ == "__main__":
    asyncio.run(main())
