"""Dates as (year, month, day) in the Gregorian calendar."""
