"""The tables of a shop in PostgreSQL, and a thread that changes them by random transactions."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg import Connection

TABLES = """
CREATE TABLE customers (id BIGINT PRIMARY KEY, country TEXT NOT NULL);
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT NOT NULL, status TEXT NOT NULL);
CREATE TABLE order_lines (
    order_id BIGINT, line INT, amount INT NOT NULL, cents BIGINT NOT NULL, PRIMARY KEY (order_id, line));
"""
COUNTRIES = ("AT", "BR", "CH", "CN", "DE", "EG", "FR", "IN", "IT", "JP", "MX", "US")
CUSTOMERS = 500
ORDERS = 1_000
LINES_MAX = 5
AMOUNT_MAX = 9
CENTS_MAX = 10_000
RETRY_S = 0.2


def create_tables(url: str, seed: int) -> None:
    """Create the tables with their first rows, in one transaction."""
    import psycopg

    draw = random.Random(seed)
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(TABLES)
        customers = [(one, draw.choice(COUNTRIES)) for one in range(CUSTOMERS)]
        cursor.executemany("INSERT INTO customers VALUES (%s, %s)", customers)
        for order in range(ORDERS):
            _insert_order(connection, draw, order)


class Trade:
    """Random transactions at a steady rate, in a thread, within a `with` block.

    A transaction inserts an order with its lines, or changes, cancels or deletes one, or lets a customer
    move to another country. When the server goes away the thread connects again and goes on.

    Args:
        url: of the database with the tables.
        transactions: how many to commit.
        rate: transactions a second.
        seed: of the random numbers.

    Attributes:
        committed: number of transactions that the server has acknowledged.
        failure: what ended the thread before the last transaction; None as long as nothing has.
    """

    def __init__(self, url: str, transactions: int, rate: float, seed: int) -> None:
        self.committed = 0
        self.failure: Exception | None = None
        self._url, self._transactions, self._rate = url, transactions, rate
        self._draw = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trade", daemon=True)

    def __enter__(self) -> Trade:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def ended(self) -> bool:
        """Whether all transactions are committed, or the thread has failed."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        import psycopg

        while self.committed < self._transactions and not self._stopped.is_set():
            try:
                with psycopg.connect(self._url) as connection:
                    self._trade(connection)
            except psycopg.OperationalError:  # the server is away, or was while we committed
                self._stopped.wait(RETRY_S)
            except psycopg.Error as error:
                self.failure = error
                return

    def _trade(self, connection: Connection[Any]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT max(id) + 1 FROM orders")
            (following,) = cursor.fetchone() or (0,)
        connection.commit()
        begun, before = time.monotonic(), self.committed
        while self.committed < self._transactions and not self._stopped.is_set():
            change = self._draw.choices(tuple(CHANGES), tuple(CHANGES.values()))[0]
            following += change(connection, self._draw, following) or 0
            connection.commit()
            self.committed += 1
            ahead = (self.committed - before) / self._rate - (time.monotonic() - begun)
            if ahead > 0:
                self._stopped.wait(ahead)


# --- transactions: `following` is the number of the next order; each returns how many orders it has inserted ---


def _insert_order(connection: Connection[Any], draw: random.Random, following: int) -> int:
    connection.execute(
        "INSERT INTO orders VALUES (%s, %s, 'open')", (following, draw.randrange(CUSTOMERS))
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO order_lines VALUES (%s, %s, %s, %s)",
            [
                (following, line, draw.randint(1, AMOUNT_MAX), draw.randint(1, CENTS_MAX))
                for line in range(draw.randint(1, LINES_MAX))
            ],
        )
    return 1


def _change_line(connection: Connection[Any], draw: random.Random, following: int) -> int:
    connection.execute(
        "UPDATE order_lines SET amount = %s WHERE order_id = %s AND line = 0",
        (draw.randint(1, AMOUNT_MAX), draw.randrange(following)),
    )
    return 0


def _cancel_order(connection: Connection[Any], draw: random.Random, following: int) -> int:
    connection.execute(
        "UPDATE orders SET status = 'cancelled' WHERE id = %s", (draw.randrange(following),)
    )
    return 0


def _delete_order(connection: Connection[Any], draw: random.Random, following: int) -> int:
    order = (draw.randrange(following - 1),)  # not the last one, whose number would come again
    connection.execute("DELETE FROM order_lines WHERE order_id = %s", order)
    connection.execute("DELETE FROM orders WHERE id = %s", order)
    return 0


def _move_customer(connection: Connection[Any], draw: random.Random, _following: int) -> int:
    connection.execute(
        "UPDATE customers SET country = %s WHERE id = %s",
        (draw.choice(COUNTRIES), draw.randrange(CUSTOMERS)),
    )
    return 0


CHANGES: dict[Callable[[Any, random.Random, int], int], float] = {
    _insert_order: 60,
    _change_line: 20,
    _cancel_order: 8,
    _delete_order: 8,
    _move_customer: 4,
}
"""The transactions with their shares in percent."""
