"""A partitioned table with a column whose values are stored out of line."""

LARGE = "x" * 9000
"""A value that is stored out of line, because the column is not compressed."""

PARTS = """
CREATE TABLE parts (id int PRIMARY KEY, code int NOT NULL, large text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE high PARTITION OF parts FOR VALUES FROM (100) TO (200);
ALTER TABLE parts ALTER large SET STORAGE EXTERNAL;
ALTER TABLE low ALTER large SET STORAGE EXTERNAL;
ALTER TABLE high ALTER large SET STORAGE EXTERNAL;
"""
