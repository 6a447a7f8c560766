-- Run once, by docker-compose.yml's PostgreSQL, when its volume is new; the superuser runs it.
-- The owner migrates, and makes and drops the days of the history. What the worker may do is granted
-- by the service migrate.
\getenv owner_password OWNER_PASSWORD
\getenv worker_password WORKER_PASSWORD

CREATE ROLE tasks_app_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE tasks_app_worker LOGIN PASSWORD :'worker_password';
ALTER DATABASE tasks_app OWNER TO tasks_app_owner;
REVOKE ALL ON DATABASE tasks_app FROM PUBLIC;
GRANT CONNECT, TEMPORARY ON DATABASE tasks_app TO tasks_app_worker;
