// River as its own benchmark runs it: short pauses between fetches, many workers, LISTEN.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	atOnce = 5_000
	warm   = 50
	effect = "INSERT INTO effect (i) VALUES ($1)"
)

type arguments struct {
	N       int     `json:"n"`
	Handler string  `json:"handler"`
	First   int     `json:"first"`
	Size    int     `json:"size"`
	GapS    float64 `json:"gap_s"`
	Warm    []int   `json:"warm"`
	Workers int     `json:"workers"`
	Pool    int     `json:"pool"`
}

type noop struct {
	I int `json:"i"`
}

type insert struct {
	I int `json:"i"`
}

func (noop) Kind() string   { return "noop" }
func (insert) Kind() string { return "insert" }

type noopWorker struct{ river.WorkerDefaults[noop] }

func (*noopWorker) Work(_ context.Context, job *river.Job[noop]) error {
	mark(job.Args.I, now())
	return nil
}

type insertWorker struct {
	river.WorkerDefaults[insert]
	pool *pgxpool.Pool
}

func (w *insertWorker) Work(ctx context.Context, job *river.Job[insert]) error {
	started := now()
	if _, err := w.pool.Exec(ctx, effect, job.Args.I); err != nil {
		return err
	}
	mark(job.Args.I, started)
	return nil
}

type client = river.Client[pgx.Tx]

func connect(ctx context.Context, most int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(os.Getenv("BENCH_DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(most)
	return pgxpool.NewWithConfig(ctx, config)
}

func insertMany(ctx context.Context, c *client, n int, handler string, first, size int) error {
	for start := first; start < first+n; start += size {
		jobs := make([]river.InsertManyParams, 0, size)
		for i := start; i < min(first+n, start+size); i++ {
			var args river.JobArgs = noop{i}
			if handler == "insert" {
				args = insert{i}
			}
			jobs = append(jobs, river.InsertManyParams{Args: args})
		}
		if _, err := c.InsertManyFast(ctx, jobs); err != nil {
			return err
		}
	}
	return nil
}

func insertOne(ctx context.Context, c *client, i int) error {
	_, err := c.Insert(ctx, noop{i}, nil)
	return err
}

func timed(work func() error) (any, error) {
	started := now()
	err := work()
	return float64(now()-started) / 1e9, err
}

func latency(ctx context.Context, c *client, a arguments) (any, error) {
	for _, i := range a.Warm {
		if err := insertOne(ctx, c, i); err != nil {
			return nil, err
		}
	}
	begun, committed := []int64{}, []int64{}
	start := time.Now()
	for i := range a.N {
		time.Sleep(time.Until(start.Add(time.Duration(float64(i) * a.GapS * 1e9))))
		begun = append(begun, now())
		if err := insertOne(ctx, c, i); err != nil {
			return nil, err
		}
		committed = append(committed, now())
	}
	return [][]int64{begun, committed}, nil
}

func work(ctx context.Context, a arguments) error {
	if err := errors.Join(openMarks(), gather("river")); err != nil {
		return err
	}
	pool, err := connect(ctx, a.Pool)
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &noopWorker{})
	river.AddWorker(workers, &insertWorker{pool: pool})
	c, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: a.Workers}},
		Workers:           workers,
	})
	if err != nil {
		return err
	}
	stopped, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	if err := c.Start(ctx); err != nil {
		return err
	}
	<-stopped.Done()
	return c.Stop(ctx)
}

func produce(ctx context.Context, verb string, a arguments) (any, error) {
	pool, err := connect(ctx, 4)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	if verb == "install" {
		migrator, err := rivermigrate.New(driver, nil)
		if err != nil {
			return nil, err
		}
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
		return nil, err
	}
	c, err := river.NewClient(driver, &river.Config{})
	if err != nil {
		return nil, err
	}
	if a.Size == 0 {
		a.Size = atOnce
	}
	switch verb {
	case "enqueue":
		return nil, insertMany(ctx, c, a.N, a.Handler, a.First, a.Size)
	case "bulk":
		if err := insertMany(ctx, c, warm, "noop", 0, warm); err != nil {
			return nil, err
		}
		return timed(func() error { return insertMany(ctx, c, a.N, "noop", 0, a.Size) })
	case "single":
		many := func(n int) error {
			for i := range n {
				if err := insertOne(ctx, c, i); err != nil {
					return err
				}
			}
			return nil
		}
		if err := many(warm); err != nil {
			return nil, err
		}
		return timed(func() error { return many(a.N) })
	case "latency":
		return latency(ctx, c, a)
	}
	return nil, fmt.Errorf("unknown verb %s", verb)
}

func main() {
	ctx, a := context.Background(), arguments{}
	if len(os.Args) > 2 {
		if err := json.Unmarshal([]byte(os.Args[2]), &a); err != nil {
			log.Fatal(err)
		}
	}
	if os.Args[1] == "work" {
		if err := work(ctx, a); err != nil {
			log.Fatal(err)
		}
		return
	}
	answer, err := produce(ctx, os.Args[1], a)
	if err != nil {
		log.Fatal(err)
	}
	if answer != nil {
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
	}
}
