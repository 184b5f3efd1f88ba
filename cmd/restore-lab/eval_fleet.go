package main

import (
	"context"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/fleet"
)

// fleetPictures is how many pictures workers are asked about at once by default.
const fleetPictures = 64

// overNATS connects to the workers of --nats.
func (o *benchmarkOptions) overNATS(
	ctx context.Context, a *cli.App, system string,
) (_ eval.Answerer, done func(), err error) {
	if o.server != "" {
		return nil, nil, cli.Flagf("openai", "got %s together with --nats, want one of them",
			o.server)
	}
	e, done, err := evalFleet(ctx, a, &o.nats, &o.reduction, o.model.Path, o.mixed)
	if err != nil {
		return nil, nil, err
	}
	if e.System = system; !o.fs.Changed("parallel") {
		o.parallel = fleetPictures
	}
	return e, done, nil
}

// evalFleet asks the workers of a model over NATS; mixed accepts workers that may differ in the
// last bits.
func evalFleet(
	ctx context.Context, a *cli.App, n *cli.NatsFlags, r *cli.ReductionFlags, model string,
	mixed bool,
) (_ *eval.Service, done func(), err error) {
	if n.Embedded() {
		return nil, nil, cli.Flagf("nats",
			"got embedded, want the URL of a NATS server with workers")
	}
	if err := cli.CheckRemote(r.Flags); err != nil {
		return nil, nil, err
	}
	given, err := r.Reduction()
	if err != nil {
		return nil, nil, err
	}
	c, end, err := n.Dial(ctx, a, "restore-lab eval", "", cli.Warnings(a))
	if err != nil {
		return nil, nil, err
	}
	k, err := cli.FleetClient(ctx, a, c, fleet.ClientOptions{Model: model, Same: !mixed})
	if err != nil {
		end()
		return nil, nil, err
	}
	return &eval.Service{Model: k, Reduction: given}, func() { k.Close(); end() }, nil
}
