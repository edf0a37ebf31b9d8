"""Elastic PyTorch training as a first-class citizen of Airflow.

This package imports nothing by itself: a pod that has only torch, and a scheduler that has only Airflow, both start here.
"""
