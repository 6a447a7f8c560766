"""Pages."""

from django.contrib import admin
from django.urls import path
from orders.views import place_order

urlpatterns = [path("orders/", place_order), path("admin/", admin.site.urls)]
