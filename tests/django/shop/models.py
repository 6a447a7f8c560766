"""What handlers write."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An effect of a task."""

    task_id = models.BigIntegerField()
    note = models.TextField(default="")


class Line(models.Model):
    """It refers to an order: PostgreSQL checks that at the COMMIT."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)


class Effect(models.Model):
    """A row of the workbench's table."""

    task_id = models.BigIntegerField(primary_key=True)
    note = models.TextField()

    class Meta:
        managed = False
        db_table = "effect"
