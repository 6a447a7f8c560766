"""An order and its task in one transaction: flask --app flask_app.app run."""

from __future__ import annotations

from typing import Any

from flask import Flask, abort, request

from flask_app.models import Order, db
from flask_app.tasks import Placed, confirm_order
from tasks_app import Settings, create_task, get_task


def create_app() -> Flask:
    """Make the application."""
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = Settings().database
    db.init_app(app)
    with app.app_context():
        db.create_all()  # a real application has migrations

    @app.post("/orders")
    def place() -> tuple[dict[str, int], int]:
        """Insert an order and its task: both exist, or neither."""
        order = Order(item=request.form["item"])
        db.session.add(order)
        db.session.flush()  # gives order.id
        task_id = create_task(db.session, confirm_order, Placed(order_id=order.id))
        if order.item == "unicorn":
            abort(409)  # not committed: no order, and no task
        answer = {"order_id": order.id, "task_id": int(task_id)}
        db.session.commit()
        return answer, 201

    @app.get("/orders/<int:order_id>")
    def show(order_id: int) -> dict[str, Any]:
        """Show an order."""
        order = db.get_or_404(Order, order_id)
        return {"item": order.item, "confirmed": order.confirmed}

    @app.get("/order-tasks/<int:task_id>")
    def task(task_id: int) -> dict[str, Any]:
        """Say where the task is."""
        found = get_task(db.session, task_id) or abort(404)
        return {"state": found.state, "error": found.error}

    return app
