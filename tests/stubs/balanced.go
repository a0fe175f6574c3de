// Stubs of Go with the service config of docs/how-to/channels.md, and with keepalive:
//
//	balanced CONFIG answer COUNT ADDRESS…   so many short answers, one after the other, by any of the addresses
//	balanced CONFIG hold SECONDS ADDRESS    an idle Session for so long, with a ping every 10 s
//
// An answer that breaks off after its first event is begun anew, as the contract has it. Exits 1 if one ends before
// that, or if the Session ends.
package main

import (
	"context"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/health"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "ringline.dev/gen/inference/v1"
)

func main() {
	log.SetFlags(0)
	config, what, addresses := os.Args[1], os.Args[2], os.Args[4:]
	number, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	// What DNS would say.
	named := manual.NewBuilderWithScheme("named")
	state := resolver.State{}
	for _, address := range addresses {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	named.InitialState(state)
	connection, err := grpc.Dial(
		"named:///processors",
		grpc.WithInsecure(),
		grpc.WithResolvers(named),
		grpc.WithDefaultServiceConfig(config),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true,
		}),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := inferencev1.NewInferenceServiceClient(connection)
	if what == "hold" {
		hold(client, time.Duration(number)*time.Second)
		return
	}
	for answered := 0; answered < number; {
		if answer(client) {
			answered++
		}
	}
}

// answer says whether an answer came to its end; not so if it broke off after it had begun.
func answer(client inferencev1.InferenceServiceClient) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := client.Generate(ctx, &inferencev1.GenerateRequest{
		Prompt:   &inferencev1.GenerateRequest_Text{Text: "Once upon a time"},
		Stopping: &inferencev1.StoppingParams{MaxTokens: proto.Uint32(8), IgnoreEos: proto.Bool(true)},
	})
	if err != nil {
		log.Fatal(err)
	}
	for begun, finished := false, false; ; begun = true {
		response, err := stream.Recv()
		if err == io.EOF {
			return finished
		}
		if err != nil {
			if begun && status.Code(err) == codes.Unavailable {
				return false
			}
			log.Fatalf("after its first event (%v): %v", begun, err)
		}
		finished = response.GetRequestFinished() != nil
	}
}

// hold keeps a Session on which nothing happens after its limits.
func hold(client inferencev1.InferenceServiceClient, period time.Duration) {
	stream, err := client.Session(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Recv()
		ended <- err
	}()
	select {
	case err := <-ended:
		log.Fatalf("the session ended: %v", err)
	case <-time.After(period):
	}
}
