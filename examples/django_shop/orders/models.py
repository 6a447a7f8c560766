"""Rows of the shop."""

from django.db import models


class Order(models.Model):
    """What a customer bought."""

    customer = models.CharField(max_length=100)
    amount = models.PositiveIntegerField()


class Points(models.Model):
    """Points of one order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)
    number = models.PositiveIntegerField()
