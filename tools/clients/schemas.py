"""Requests for structured output, as openai-python with pydantic and instructor send them.

    python schemas.py > FILE   prints a request a line, {client, name, body}
    python schemas.py URL      asks a server, and parses the answers with the library
"""

import json
import sys
from datetime import date, datetime, time, timedelta
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Annotated, Literal, Optional, Union
from uuid import UUID

import httpx
import instructor
from openai import OpenAI
from pydantic import AnyUrl, BaseModel, EmailStr, Field, NonNegativeInt, PositiveFloat, SecretStr, conlist


class Color(str, Enum):
    red = "red"
    green = "green"


class Rank(int, Enum):
    one = 1
    two = 2


class Box(BaseModel):
    x: int = Field(ge=0, le=4096)
    y: int = Field(ge=0, lt=4096)
    label: Annotated[str, Field(max_length=20)]


class Plain(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    count: int
    ratio: float
    ok: bool


class Ranges(BaseModel):
    a: Annotated[int, Field(gt=0, lt=10)]
    b: Annotated[float, Field(ge=0, le=1)]
    c: NonNegativeInt
    d: PositiveFloat
    e: Annotated[int, Field(multiple_of=5, ge=-20, le=20)]


class Enums(BaseModel):
    color: Color
    rank: Rank
    word: Literal["yes", "no"]
    fixed: Literal[7]


class Dates(BaseModel):
    day: date
    at: datetime
    clock: time
    span: timedelta


class Addresses(BaseModel):
    id: UUID
    v4: IPv4Address
    v6: IPv6Address
    mail: EmailStr
    link: AnyUrl


class Nullable(BaseModel):
    note: Optional[Annotated[str, Field(max_length=12)]]
    box: Optional[Box] = None
    age: Optional[Annotated[int, Field(ge=0, le=150)]] = None


class Texts(BaseModel):
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}-\d{2,4}$")]
    word: Annotated[str, Field(pattern=r"^\w+$", min_length=2, max_length=8)]


class Lists(BaseModel):
    tags: conlist(Annotated[str, Field(max_length=6)], min_length=1, max_length=3)
    boxes: Annotated[list[Box], Field(max_length=2)]


class Unions(BaseModel):
    value: Union[int, Annotated[str, Field(max_length=8)], bool, None]


class Tree(BaseModel):
    name: Annotated[str, Field(max_length=6)]
    children: Annotated[list["Tree"], Field(max_length=2)]


class Reused(BaseModel):
    first: Box = Field(description="The first box")
    second: Box


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = Field(9, ge=1, le=9)


class Pets(BaseModel):
    pet: Annotated[Union[Dog, Cat], Field(discriminator="kind")]


class Pair(BaseModel):
    point: tuple[int, int]
    named: tuple[Literal["x"], float]


class Kinds(BaseModel):
    secret: Annotated[SecretStr, Field(max_length=8)]
    file: Path
    raw: Annotated[bytes, Field(max_length=8)]


class Scores(BaseModel):
    by_name: dict[str, int]
    by_color: dict[Literal["red", "green"], float]


STRICT = [Plain, Ranges, Enums, Dates, Addresses, Nullable, Texts, Lists, Unions, Tree, Reused]
LOOSE = [Pets, Pair, Scores, Kinds]

url = sys.argv[1] if len(sys.argv) > 1 else None
current = ["", ""]


def record(request):
    print(json.dumps({"client": current[0], "name": current[1], "body": json.loads(request.content)}))
    return httpx.Response(400, json={"error": {"message": "recorded"}})


http = None if url else httpx.Client(transport=httpx.MockTransport(record))
client = OpenAI(base_url=(url or "http://record") + "/v1", api_key="none", max_retries=0, http_client=http)
asked = {"model": "builtin", "messages": [{"role": "user", "content": "Describe the picture as JSON."}], "temperature": 1.0, "seed": 7}


def attempt(library, model, call):
    current[:] = [library, model.__name__]
    try:
        value = call()
        print("ok:", library, model.__name__, repr(value))
    except Exception as e:
        if url is None and "recorded" in str(e):
            return
        sys.exit(f"failed: {library} {model.__name__}: {e}")


for model in STRICT:
    attempt("openai-python", model, lambda: client.chat.completions.parse(response_format=model, **asked).choices[0].message.parsed)
patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
for model in STRICT + LOOSE:
    attempt("instructor", model, lambda: patched.chat.completions.create(response_model=model, max_retries=0, **asked))
